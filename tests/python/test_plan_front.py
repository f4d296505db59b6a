"""bench/plan_front.py: the front as the program prints it, and the arithmetic beside it. Nothing is timed."""

import sys
import xml.etree.ElementTree as ElementTree

import pytest


@pytest.fixture(scope="module")
def bench(repository):
    sys.path.insert(0, str(repository / "bench"))
    try:
        import plan_front

        yield plan_front
    finally:
        sys.path.remove(str(repository / "bench"))


TINY = ["--layers=2", "--width=64", "--heads=2", "--vocab=2000", "--length=16", "--texts=4", "--microbatches=4", "--untied"]


def test_the_program_prints_its_front_from_the_fastest_plan_to_the_smallest(bench, binary):
    front = bench.front_of([str(binary.parent / "step_compare"), *TINY], ranks=1)
    assert len(front) > 1
    for before, after in zip(front, front[1:]):
        assert after["peak_bytes"] < before["peak_bytes"]
        assert after["seconds"] > before["seconds"]
        assert after["change"]


FAST, SMALL = {"peak_bytes": 100 << 20, "seconds": 1.0, "change": ""}, {"peak_bytes": 50 << 20, "seconds": 2.0, "change": "held"}


def test_a_plan_is_predicted_by_what_it_adds_to_the_fastest_as_measured(bench):
    answers = [[4.0, 4.0, 300.0], [5.0, 4.0, 300.0], [6.0, 4.0, 300.0]], [[5.0, 4.0, 240.0], [6.0, 4.0, 250.0], [7.0, 4.0, 250.0]]
    point = bench.point_of(SMALL, FAST, answers, beside_mib=200.0)
    assert point["predicted_time"] == pytest.approx(1 + 1.0 / 5.0)  # the median of the fastest is 5 s
    assert point["measured_time"] == pytest.approx(6 / 5)
    assert point["predicted_mib"] == pytest.approx(250) and point["measured_mib"] == 250
    assert not bench.is_off(point)
    assert point["noise"] == pytest.approx(5 / 4 - 7 / 6)


@pytest.mark.parametrize("seconds, mib, off", [(6.0, 250.0, False), (6.8, 250.0, True), (6.0, 265.0, True), (5.2, 250.0, True)])
def test_a_prediction_that_is_off_is_seen(bench, seconds, mib, off):
    point = bench.point_of(SMALL, FAST, ([[5.0, 5.0, 300.0]], [[seconds, 5.0, mib]]), beside_mib=200.0)
    assert bench.is_off(point) == off
    assert ("OFF" in bench.line_of("shape", point)) == off


def test_a_long_front_is_thinned_to_its_ends_and_plans_between(bench):
    front = [{"peak_bytes": i} for i in range(11)]
    assert [plan["peak_bytes"] for plan in bench.thinned(front, 6)] == [0, 2, 4, 6, 8, 10]
    assert bench.thinned(front[:3], 6) == front[:3]


def test_the_plot_has_a_panel_for_each_shape_and_a_dot_for_each_plan(bench):
    point = bench.point_of(SMALL, FAST, ([[5.0, 5.0, 300.0]], [[6.0, 5.0, 250.0]]), beside_mib=200.0)
    first = bench.point_of(FAST, FAST, ([[5.0, 5.0, 300.0]], [[5.0, 5.0, 300.0]]), beside_mib=200.0)
    run = {"shape": "28.9M_T100", "microbatches": 4, "points": [first, point]}
    svg = ElementTree.fromstring(bench.plot([run, run, run]))
    space = "{http://www.w3.org/2000/svg}"
    assert len(svg.findall(f"{space}circle")) == 6
    assert len(svg.findall(f"{space}polyline")) == 3
    for dot in svg.findall(f"{space}circle"):
        assert 0 < float(dot.get("cx")) < 3 * bench.WIDTH and 0 < float(dot.get("cy")) < bench.HEIGHT
