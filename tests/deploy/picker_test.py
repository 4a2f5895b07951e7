"""The picker of the tests reads metrics and chooses as llm-d's does."""

from tests.deploy.picker import extract, pick

PAGE = """\
# TYPE tandem_num_requests_waiting gauge
tandem_num_requests_waiting 3
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="a"} 2
vllm:num_requests_waiting{model_name="b"} 5
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc 0.25
"""


def test_the_first_series_counts_and_not_the_sum():
    assert extract(PAGE) == {"waiting": 2, "kv_cache": 0.25}


def test_what_is_not_there_is_none():
    assert extract("vllm:num_requests_waiting_total 1\n") == {"waiting": None, "kv_cache": None}


def values(waiting, kv_cache=0.0):
    return {"waiting": waiting, "kv_cache": kv_cache}


def test_the_shortest_queue_wins():
    assert pick({"a": values(3), "b": values(0), "c": values(1)}) == "b"


def test_the_kv_cache_weighs_as_much_as_the_queue():
    assert pick({"a": values(0, 0.9), "b": values(1, 0.1), "c": values(4)}) == "b"


def test_equals_are_chosen_from():
    offered = []
    pick({"a": values(1), "b": values(1), "c": values(2)}, lambda best: offered.append(best))
    assert offered == [["a", "b"]]


def test_without_servers_there_is_no_choice():
    assert pick({}) is None
