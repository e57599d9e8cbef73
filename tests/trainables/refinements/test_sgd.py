"""The optimiser of the heads against torch's."""

import torch

from trainables.refinements._sgd import MaskedSGD


def test_without_masks_it_is_sgd() -> None:
    torch.manual_seed(0)
    ours, theirs = torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)
    theirs.load_state_dict(ours.state_dict())
    mine = MaskedSGD(dict(ours.named_parameters()), 0.1, 0.9, 5e-4)
    reference = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    for _ in range(20):
        features = torch.randn(8, 5)
        for module in (ours, theirs):
            module.zero_grad()
            module(features).square().sum().backward()
        mine.step({})
        reference.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_masked_weight_and_its_velocity_wait() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimiser = MaskedSGD({"w": weight}, lr=0.1, momentum=0.9, weight_decay=0.1)
    weight.grad = torch.tensor([1.0, 1.0])
    optimiser.step({})
    held, velocity = weight.detach().clone(), optimiser.velocities["w"].clone()
    optimiser.step({"w": torch.tensor([True, False])})
    assert weight[1] == held[1]
    assert optimiser.velocities["w"][1] == velocity[1]
    assert weight[0] < held[0]
    assert optimiser.velocities["w"][0] != velocity[0]


def test_parameters_without_gradient_stay() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimiser = MaskedSGD({"w": weight}, lr=0.1, momentum=0.9, weight_decay=0.1)
    optimiser.step({})
    assert torch.equal(weight.detach(), torch.ones(2))
