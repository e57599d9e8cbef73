"""CIFAR-100."""

from torchvision.datasets import CIFAR100

from trainables.data._registry import SOURCES
from trainables.data.cifar10 import Cifar10Reader

NAMES = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
    butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
    crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
    lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""


@SOURCES.register("cifar100")
class Cifar100Reader(Cifar10Reader):
    """CIFAR-100 (Krizhevsky, 2009), the 100 fine labels: 50,000 and 10,000 images, RGB, 32 x 32."""

    dataset = CIFAR100

    def class_names(self) -> tuple[str, ...]:
        """Return the official fine names, which are sorted."""
        return tuple(NAMES.split())
