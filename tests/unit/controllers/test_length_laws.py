"""Length laws: moments in closed form, sampling, constructors and their errors."""

import numpy as np
import pytest
from loop_cases import LENGTH_SPECS

from controllers.models import LengthLaw


def _pmf_moments(law: LengthLaw) -> tuple[float, float]:
    lengths = np.arange(1, law.longest + 1)
    return float(lengths @ law.pmf), float(lengths**2 @ law.pmf)


@pytest.mark.parametrize("spec", LENGTH_SPECS)
def test_residual_mean_closed_forms(spec):
    law = LengthLaw.parse(spec)
    first, second = _pmf_moments(law)
    assert law.mean == pytest.approx(first, rel=1e-12)
    assert law.second_moment == pytest.approx(second, rel=1e-12)
    assert law.residual_mean == pytest.approx((second / first + 1) / 2, rel=1e-12)
    assert law.residual_mean == pytest.approx((law.mean * (1 + law.cv**2) + 1) / 2, rel=1e-12)
    # The mean over running requests of what remains: E over ages of R(age)/S(age).
    assert law.residual_mean == pytest.approx(law.remaining_array.sum() / law.mean, rel=1e-12)


def test_residual_mean_of_the_named_cases():
    assert LengthLaw.const(50).residual_mean == pytest.approx(25.5)
    assert LengthLaw.geometric(50).residual_mean == pytest.approx(50.0, rel=1e-10)
    assert LengthLaw.uniform(1, 99).residual_mean == pytest.approx((99 + 2) / 3)
    mixed = LengthLaw.mixture([20, 50, 200], [0.5, 0.3, 0.2])
    assert mixed.mean == pytest.approx(65.0)
    assert mixed.residual_mean == pytest.approx((8950 / 65 + 1) / 2)


@pytest.mark.parametrize("spec", LENGTH_SPECS)
def test_residual_mean_is_what_an_observer_sees(spec):
    """Length-biased renewal: watch back-to-back requests at random times."""
    law = LengthLaw.parse(spec)
    lengths = law.sample(np.random.default_rng(7), 40_000)
    seen = np.sum(lengths * (lengths + 1) / 2) / np.sum(lengths)
    assert seen == pytest.approx(law.residual_mean, rel=0.02)


@pytest.mark.parametrize("spec", LENGTH_SPECS)
def test_sampling_follows_the_survival(spec):
    law = LengthLaw.parse(spec)
    sample = law.sample(np.random.default_rng(1), 50_000)
    assert sample.min() >= 1
    assert sample.max() <= law.longest
    for u in {0, 1, int(law.mean / 2), int(law.mean), law.longest - 1} & set(range(law.longest)):
        assert np.mean(sample > u) == pytest.approx(law.survival[u], abs=0.01)


def test_equal_laws_compare_and_hash_equal_after_use():
    first, second = LengthLaw.parse("uniform:1:9"), LengthLaw.parse("uniform:1:9")
    assert first.residual_mean  # fills the cache of one of them
    assert first == second
    assert hash(first) == hash(second)
    assert first != LengthLaw.parse("uniform:1:8")
    assert LengthLaw.model_validate_json(first.model_dump_json()) == first


def test_histogram_from_counts_file_and_samples(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("length,count\n20, 5  # short ones\n\n50 3\n200 2\n")
    expected = LengthLaw.mixture([20, 50, 200], [0.5, 0.3, 0.2])
    for law in (
        LengthLaw.parse(f"hist:{path}"),
        LengthLaw.from_histogram({20: 5, 50: 3, 200: 2}),
        LengthLaw.from_samples([20] * 5 + [50] * 3 + [200] * 2),
    ):
        np.testing.assert_allclose(law.survival, expected.survival, rtol=1e-12)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("const:0", "length 0"),
        ("const:x", "'x' is not a whole number"),
        ("uniform:9:1", "low is above high"),
        ("geometric:0.5", "finite number >= 1"),
        ("geometric:nan", "finite number >= 1"),
        ("geometric:1e9", "use a mean below"),
        ("mix:20@0.5,50@0.4", "sum to 0.9"),
        ("mix:20", "could not convert"),
        ("hist:/no/such/file", "cannot read"),
        ("lognormal:3", "unknown form"),
        ("", "unknown form"),
    ],
)
def test_parse_names_what_is_wrong(spec, says):
    with pytest.raises(ValueError, match="accepted: const:50") as caught:
        LengthLaw.parse(spec)
    assert says in str(caught.value)
    assert repr(spec) in str(caught.value)


def test_histogram_file_errors_name_the_line(tmp_path):
    path = tmp_path / "h.txt"
    path.write_text("20 5\n50 many\n")
    with pytest.raises(ValueError, match=r"h\.txt line 2"):
        LengthLaw.from_histogram(path)
    path.write_text("20 -5\n")
    with pytest.raises(ValueError, match="negative"):
        LengthLaw.from_histogram(path)
    path.write_text("# nothing\n")
    with pytest.raises(ValueError, match="no counts"):
        LengthLaw.from_histogram(path)


@pytest.mark.parametrize("survival", [(), (0.9,), (1.0, 0.5, 0.6), (1.0, -0.1)])
def test_survival_is_checked(survival):
    with pytest.raises(ValueError, match="survival"):
        LengthLaw(survival=survival)


@pytest.mark.parametrize("bad", [[], [1.5], [0], [float("nan")]])
def test_samples_are_checked(bad):
    with pytest.raises(ValueError, match="lengths"):
        LengthLaw.from_samples(bad)
