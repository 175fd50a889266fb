"""Prometheus' text format, to the letter."""

from __future__ import annotations

from engines.llm.metrics import Counter, Histogram, Metrics


def test_a_counter_has_a_line_for_each_set_of_labels() -> None:
    counter = Counter("calls_total", "Calls.")
    counter.add(path='a"b\\c\n', status="200")
    counter.add(2, path='a"b\\c\n', status="200")
    assert counter.lines() == [
        "# HELP calls_total Calls.",
        "# TYPE calls_total counter",
        'calls_total{path="a\\"b\\\\c\\n",status="200"} 3',
    ]


def test_a_histogram_counts_up_to_each_bound() -> None:
    histogram = Histogram("wait_seconds", "Waits.", (0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(seconds)
    assert histogram.lines()[2:] == [
        'wait_seconds_bucket{le="0.1"} 2',
        'wait_seconds_bucket{le="1"} 3',
        'wait_seconds_bucket{le="+Inf"} 4',
        "wait_seconds_sum 7.65",
        "wait_seconds_count 4",
    ]


def test_gauges_of_the_engine_stand_beside() -> None:
    text = Metrics().text({"free_pages": 12.0})
    assert "# TYPE chains_llm_engine_free_pages gauge\nchains_llm_engine_free_pages 12\n" in text
    assert text.endswith("\n") and "\n\n" not in text
