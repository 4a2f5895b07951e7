"""tuning/evaluate/acceptance: what is asked for, and what is counted, with a client that is made up."""

from types import SimpleNamespace

from measure.serving import Client, stubs
from tuning.evaluate import acceptance
from tuning.evaluate.measure import Task


class MadeUp(Client):
    """Answers 5 tokens in two large passes, with drafts that stayed as the rule states."""

    def __init__(self, messages):
        self.messages, self.asked = messages, []

    def complete(self, request):
        self.asked.append(request)
        match = request.speculative.acceptance == self.messages.Speculative.ACCEPTANCE_MATCH
        stats = SimpleNamespace(
            draft_tokens=8, accept_lengths=[1, 1] if match else [0, 1, 1], large_passes=2
        )
        return SimpleNamespace(tokens=[None] * 5, finished=SimpleNamespace(stats=stats))


def test_each_task_meets_both_rules_under_its_own_seed(tmp_path):
    client = MadeUp(stubs(str(tmp_path))[0])
    tasks = [Task((1, 2), ()), Task((3,), ())]
    results = acceptance.measure(client, tasks, 5, 4, streams=1)
    assert {(r.temperature, r.seed, r.speculative.acceptance) for r in client.asked} == {
        (t, seed, rule) for t in (0.5, 1.0) for seed in (0, 1) for rule in (1, 2)
    }
    assert all(r.speculative.draft_tokens == 4 for r in client.asked)
    match, ratio = results[:2]
    assert (match.accepted, match.drafted, match.share) == (2, 16, 0.125)
    assert (ratio.accepted, ratio.share) == (6, 0.375)
    assert acceptance.table(results, 4).splitlines()[2] == "| 0.5 | match | 12.5 % of 16 | 2.50 |"
