"""Faults in balls of other norms, regions of few pixels, and threats."""

from tests.mutants.fault import Mutant as M

NORMS = ("tests/test_norm_ball.py", "tests/search/test_balls.py")
SUMS = ("tests/bounds/test_first_sums.py",)
PIXELS = ("tests/test_pixel_ball.py",)
THREATS = ("tests/test_threats.py",)

FAULTS = [
    M("bounds/linear/ball.py", "size * several_sums(count + 64, 8) + tiny(torch.float64) * count", "0 * size", NORMS),
    M("bounds/linear/ball.py", "(gains - costs).sum(2) + whole", "(gains - costs).sum(2)", NORMS),
    M(
        "bounds/linear/ball.py",
        "t = torch.clamp(wide / (2 * multiplier).unsqueeze(2), low, high).nan_to_num(0.0)\n        gains",
        "t = torch.minimum((wide / (2 * multiplier).unsqueeze(2)).nan_to_num(0.0), high.abs() / 2)\n        gains",
        NORMS,
    ),
    M(
        "bounds/linear/ball.py",
        "torch.where(wide < -multiplier.unsqueeze(2), low, still)",
        "torch.where(wide < -multiplier.unsqueeze(2), high, still)",
        NORMS,
    ),
    M("bounds/linear/ball.py", "gains = torch.maximum(wide * low, wide * high)", "gains = wide * high", PIXELS),
    M("bounds/linear/ball.py", "return size - lost > most", "return size + lost > most", NORMS),
    M(
        "bounds/linear/ball.py",
        "nearest.sum(1) if ball.norm == 1 else nearest.square().sum(1)",
        "nearest.sum(1)",
        NORMS,
    ),
    M(
        "norm_ball.py",
        "Ball(box, self.x, float_up(self.eps), self.norm)",
        "Ball(box, self.x, 0.99 * float(self.eps), self.norm)",
        NORMS,
    ),
    M(
        "norm_ball.py",
        "return Ball(super().take(index), self.origin[index]",
        "return Ball(super().take(index), self.origin[: len(self.origin[index])]",
        NORMS,
    ),
    M("norm_ball.py", "Fraction(0)) <= self.eps**self.norm", "Fraction(0)) <= self.eps**2", NORMS),
    M("norm_ball.py", "if clip and any(x != point and not", "if clip and all(x != point and not", NORMS),
    M("bounds/first_sums.py", "rise = ups.clamp(min=0) - downs.clamp(max=0)", "rise = ups.clamp(min=0)", SUMS),
    M("bounds/first_sums.py", "fall = downs.clamp(min=0) - ups.clamp(max=0)", "fall = rise", SUMS),
    M("bounds/first_sums.py", "each.largest(torch.maximum(x.rise, x.fall))", "each.largest(x.rise.clamp(max=1))", SUMS),
    M("bounds/first_sums.py", "up, down = slightly_up(up + paid), slightly_up(down + paid)", "pass", SUMS),
    M("bounds/first_sums.py", "lambda w: w.clamp(max=0).square()", "lambda w: w.clamp(min=0).square()", SUMS),
    M("bounds/first_sums.py", "affine.keeps_apart(tuple(x.origin.shape), *rest, **kwargs)", "True", SUMS),
    M(
        "bounds/first_sums.py",
        "(ball.upper > ball.origin, ball.lower < ball.origin)",
        "(ball.lower < ball.origin, ball.upper > ball.origin)",
        SUMS,
    ),
    M(
        "pixel_ball.py",
        "every.topk(min(int(self.eps), every.shape[-1]), dim=-1).values.sum(-1)",
        "every.topk(1, dim=-1).values.sum(-1) * float(self.eps) / 2",
        PIXELS,
    ),
    M("pixel_ball.py", "self._squares(gains).flatten(1).amax(1)", "self._squares(gains).flatten(1)[:, 0]", PIXELS),
    M("pixel_ball.py", "return len(pixels) <= self.eps", "return len(pixels) <= self.eps + 1", PIXELS),
    M("pixel_ball.py", "all(max(line) - min(line) < self.eps", "any(max(line) - min(line) < self.eps", PIXELS),
    M("threats/transforms.py", "math.ceil(self.displacement(size))", "math.floor(self.displacement(size))", THREATS),
    M(
        "threats/transforms.py",
        "turned = math.sin(min(angle, math.pi / 2)) + 1 - math.cos(angle)",
        "turned = 1 - math.cos(angle)",
        THREATS,
    ),
]
