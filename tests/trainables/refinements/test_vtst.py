import torch
from torch.distributions import Normal, kl_divergence

from trainables.refinements import build_refinement
from trainables.refinements.vtst import VariationalHead


def test_loss_is_cross_entropy_plus_the_mean_divergence():
    features, targets = torch.randn(9, 6), torch.randint(3, (9,))
    losses = {}
    for beta in (0.0, 2.0):
        torch.manual_seed(0)
        refinement = build_refinement("vtst", latent_dim=5, beta=beta)
        head = refinement.build_head(6, 3)
        generator = torch.Generator().manual_seed(1)
        losses[beta], logits = refinement.batch_loss(head, features, targets, generator)
        mean, log_variance = head.encode(features)
    noise = torch.randn(9, 5, generator=torch.Generator().manual_seed(1))
    drawn = Normal(mean, (0.5 * log_variance).exp())
    torch.testing.assert_close(logits, head.classifier(drawn.mean + drawn.stddev * noise))
    expected = kl_divergence(Normal(mean, (0.5 * log_variance).exp()), Normal(0.0, 1.0)).mean()
    torch.testing.assert_close((losses[2.0] - losses[0.0]) / 2, expected)
    torch.testing.assert_close(losses[0.0], torch.nn.functional.cross_entropy(logits, targets))


def test_output_is_the_log_of_averaged_probabilities():
    head = VariationalHead(6, 5, 3, samples=4).eval()
    features = torch.randn(7, 6)
    with torch.no_grad():
        mean, log_variance = head.encode(features)
        draws = mean + (0.5 * log_variance).exp() * head.noise[:, None]
        expected = head.classifier(draws).softmax(dim=2).mean(dim=0)
        torch.testing.assert_close(head(features).exp(), expected)


def test_the_fixed_noise_is_standard_normal():
    noise = build_refinement("vtst", latent_dim=50, samples=200).build_head(6, 3).noise
    assert noise.shape == (200, 50)
    assert abs(noise.mean()) < 0.05
    assert abs(noise.std() - 1) < 0.05


def test_encoders_are_perceptrons_of_one_hidden_layer():
    features = torch.randn(9, 6)

    def encoded(layers: list[torch.Tensor]) -> torch.Tensor:
        first, bias, second, last = layers
        return (features @ first.T + bias).relu() @ second.T + last

    head = VariationalHead(6, 5, 3, samples=1)
    weights = list(head.parameters())
    mean, log_variance = head.encode(features)
    torch.testing.assert_close(mean, encoded(weights[:4]))
    torch.testing.assert_close(log_variance, encoded(weights[4:8]).sigmoid().log())
    plain = build_refinement("tst", latent_dim=5).build_head(6, 3)
    *inner, weight, bias = plain.parameters()
    torch.testing.assert_close(plain(features), encoded(inner) @ weight.T + bias)


def test_variance_stays_below_the_prior():
    head = VariationalHead(6, 5, 3, samples=1)
    _, log_variance = head.encode(100 * torch.randn(50, 6))
    assert (log_variance <= 0).all()
