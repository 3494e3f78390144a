"""Every attack on every network: what holds of all of them, judged without the attack's own code."""

from __future__ import annotations

import copy
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from surebound.attack import attack
from surebound.attack.methods import BY_NAME, FGSM, PGD, SPSA, CarliniWagner, MultiTargeted, Sign
from surebound.region import Box, LinfBall
from surebound.spec import LinearSpec

ATTACKS = {
    "pgd": PGD(steps=6, restarts=3),
    "pgd sign": PGD(steps=5, restarts=2, rule=Sign(0.4), start="mixed"),
    "pgd cross-entropy corners": PGD(steps=5, restarts=2, loss="cross-entropy", start="corner"),
    "multi-targeted": MultiTargeted(steps=4, restarts=2),
    "multi-targeted first": MultiTargeted(steps=4, targets=1),
    "fgsm": FGSM(),
    "spsa": SPSA(steps=3, samples=4),
    "carlini-wagner": CarliniWagner(steps=6, restarts=2),
}


@pytest.fixture(params=ATTACKS)
def method(request):
    return ATTACKS[request.param]


def margins_of(model, x, labels):
    """max z_k - z_true, one example at a time, the plain way."""
    with torch.no_grad():
        logits = model(x.clone())
    others = [[float(z[k] - z[y]) for k in range(len(z)) if k != y] for z, y in zip(logits, labels, strict=True)]
    return [float("nan") if any(m != m for m in row) else max(row) for row in others]


def test_there_is_an_attack_of_every_kind_in_the_table():
    assert {type(one) for one in ATTACKS.values()} == set(BY_NAME.values())


def test_what_is_returned_is_inside_and_judged_by_the_network(model, method):
    x = torch.rand(9, 3, 2, 2)
    if isinstance(model, nn.Module):
        x = x.to(next(model.parameters()).dtype)
    labels = torch.arange(9) % 2
    before = x.clone()
    modes = [m.training for m in model.modules()] if isinstance(model, nn.Module) else []
    result = attack(model, LinfBall(x, "1/10", clip=(0, 1)), labels, method, seed=1)
    assert torch.equal(x, before)
    if isinstance(model, nn.Module):
        assert [m.training for m in model.modules()] == modes
        assert all(p.grad is None for p in model.parameters())
        model = copy.deepcopy(model).eval()
    flat = zip(result.adversarial.flatten().tolist(), x.flatten().tolist(), strict=True)
    assert all(abs(Fraction(a) - Fraction(b)) <= Fraction(1, 10) and 0 <= a <= 1 for a, b in flat)
    found = margins_of(model, result.adversarial, labels)
    clean = margins_of(model, x, labels)
    assert result.success.tolist() == [not m <= 0 for m in found]
    assert result.clean_success.tolist() == [not m <= 0 for m in clean]
    assert result.margins.double().tolist() == pytest.approx(found, abs=1e-6, nan_ok=True)
    assert all(not m < c - 1e-6 for m, c in zip(found, clean, strict=True))
    assert not bool((result.attacked & result.clean_success).any())
    assert bool((result.queries[result.attacked] >= 1).all())
    assert not bool(result.queries[~result.attacked].any())


@given(
    st.lists(st.floats(0, 1, width=32), min_size=12, max_size=12),
    st.fractions(0, 1, max_denominator=255),
    st.sampled_from(sorted(ATTACKS)),
    st.integers(0, 2**32),
)
def test_every_iterate_the_network_sees_is_in_the_box(values, eps, name, seed):
    x = torch.tensor(values).view(1, 3, 2, 2)
    method = ATTACKS[name]
    seen = []

    def model(batch):
        # The margin never becomes positive, so that nothing ends the search early.
        seen.append(batch.detach().clone())
        flat = batch.flatten(1)
        return torch.stack([flat.sum(1), flat.sum(1) - flat.sin().sum(1) - 100], 1)

    attack(model, LinfBall(x, eps, clip=(0, 1)), torch.tensor([0]), method, seed=seed)
    if isinstance(method, SPSA):  # its probes may leave the box; they are never reported
        seen = [batch for batch in seen if len(batch) == 1]
    for batch in seen:
        for row in batch:
            for a, b in zip(row.flatten().tolist(), values, strict=True):
                assert abs(Fraction(a) - Fraction(b)) <= eps
                assert 0 <= a <= 1


def test_linear_specifications_are_attacked_as_labels_are(mlp, images, labels, method):
    by_label = attack(mlp, LinfBall(images, 0.2, clip=(0, 1)), labels, method)
    eye = torch.eye(3)
    rows = torch.stack([eye[[k for k in range(3) if k != y]] - eye[y] for y in labels.tolist()])
    by_spec = attack(mlp, LinfBall(images, 0.2, clip=(0, 1)), None, method, spec=LinearSpec(rows))
    assert torch.equal(by_label.success, by_spec.success)
    torch.testing.assert_close(by_label.margins, by_spec.margins, atol=1e-4, rtol=1e-3)


def test_an_offset_moves_what_counts_as_a_violation(mlp, images, method):
    c = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, -1.0]])
    top = mlp(images) @ c.T
    never = attack(
        mlp,
        LinfBall(images, 0.1, clip=(0, 1)),
        None,
        method,
        spec=LinearSpec(c, torch.tensor([-100.0, -100.0])),
    )
    always = attack(
        mlp,
        LinfBall(images, 0.1, clip=(0, 1)),
        None,
        method,
        spec=LinearSpec(c, torch.tensor([-100.0, 100.0])),
    )
    assert not bool(never.success.any())
    assert bool(((never.margins + 100) >= top.max(1).values - 1e-4).all())
    assert bool(always.clean_success.all())


def test_a_box_with_its_own_width_everywhere(mlp, labels, method):
    lower = torch.rand(24, 3, 2, 2)
    upper = lower + torch.rand(24, 3, 2, 2) * torch.tensor([0.0, 0.01, 1.0]).view(1, 3, 1, 1)
    result = attack(mlp, Box(lower, upper), labels, method)
    assert bool(((result.adversarial >= lower) & (result.adversarial <= upper)).all())


def test_radius_zero_changes_nothing(mlp, images, labels, method):
    result = attack(mlp, LinfBall(images, 0, clip=(0, 1)), labels, method)
    assert torch.equal(result.adversarial, images)
    assert torch.equal(result.success, result.clean_success)


def test_gradients_that_exist_are_left_alone_and_no_graph_is_kept(mlp, images, labels, method):
    mlp(images).sum().backward()
    before = [p.grad.clone() for p in mlp.parameters()]
    flags = [p.requires_grad for p in mlp.parameters()]
    result = attack(mlp, LinfBall(images.requires_grad_(True), 0.1, clip=(0, 1)), labels, method)
    assert all(torch.equal(p.grad, b) for p, b in zip(mlp.parameters(), before, strict=True))
    assert [p.requires_grad for p in mlp.parameters()] == flags
    assert images.grad is None
    assert not any(t.requires_grad for t in (result.adversarial, result.margins))


def test_works_inside_no_grad_and_inference_mode(mlp, images, labels, method):
    expected = attack(mlp, LinfBall(images, 0.2, clip=(0, 1)), labels, method)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            result = attack(mlp, LinfBall(images.clone(), 0.2, clip=(0, 1)), labels.clone(), method)
        assert torch.equal(result.adversarial, expected.adversarial)
