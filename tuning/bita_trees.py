"""Token trees of BiTA, and their accept lengths on known text."""

import numpy as np

WORST = 127  # a rank that no tree has


class Tree:
    """`paths`: a node each, as the ranks of the candidates that lead to it, from 1.

    `groups`: the nodes that carry masks; the root always does. Where the last accepted node carries
    none, what is left of the nearest group above it is used.
    """

    def __init__(self, paths: list[tuple[int, ...]], groups: set[tuple[int, ...]]):
        self.paths = paths
        self.groups = groups

    def rows(self, masks: int) -> int:
        return 1 + len(self.paths) + masks * (1 + len(self.groups))


def tree(kind: str, masks: int, candidates: int) -> Tree:
    depths = range(1, masks + 1)
    ranks = range(1, candidates + 1)
    if kind == "chain" or kind == "straightforward":
        ranks = range(1, 2)
    if kind == "full":
        paths, level = [], [()]
        for _ in depths:
            level = [(*path, rank) for path in level for rank in ranks]
            paths += level
    else:
        paths = [(1,) * (depth - 1) + (rank,) for depth in depths for rank in ranks]
    if kind == "triangle":
        paths = [path for path in paths if path[-1] <= candidates - len(path) + 1]
    groups = set(paths)
    if kind == "straightforward":
        groups = set()
    elif kind == "spine":
        groups = {path for path in paths if path[-1] == 1}
    return Tree(paths, groups)


KINDS = ("efficient", "spine", "triangle", "full", "chain", "straightforward")


def accept_lengths(of: Tree, ranks: np.ndarray) -> list[int]:
    """Accept length of each pass over one answer.

    ranks: [n, M], of the text's own token n + 1 + i among the candidates of m_i attached to row n
    (row 0: the prompt's last), from 1. The first pass has no drafts, and is not counted.
    """
    masks = ranks.shape[1]
    paths = set(of.paths)
    lengths = []
    row, used = 0, 0  # the candidates come from the group at `row`, of which `used` are spent
    root = 1
    while root < len(ranks):
        path: tuple[int, ...] = ()
        group, spent = root, 0
        for depth in range(1, masks - used + 1):
            if root + depth > len(ranks):
                break
            longer = (*path, int(ranks[row, used + depth - 1]))
            if longer not in paths:
                break
            path = longer
            if path in of.groups:
                group, spent = root + depth, 0
            else:
                spent += 1
        lengths.append(len(path))
        row, used = group, spent
        root += len(path) + 1
    return lengths


def tokens_per_pass(of: Tree, answers: list[np.ndarray]) -> tuple[float, np.ndarray]:
    """Mean over all passes but the first ones, and the histogram of accept lengths."""
    lengths = [n for ranks in answers for n in accept_lengths(of, ranks)]
    histogram = np.bincount(lengths, minlength=1) if lengths else np.zeros(1, dtype=int)
    return 1 + float(np.mean(lengths)) if lengths else 1.0, histogram
