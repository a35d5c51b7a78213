"""Near-same texts: MinHash candidates (rensa), verified by exact Jaccard similarity of shingles."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations

from rensa import RMinHash

from curate.text.shingle import jaccard, shingles

PERMUTATIONS = 128
ROWS = 4  # of a band: 32 bands of 4 meet a pair of similarity .7 with probability 1 - (1 - .7^4)^32 = .9998
SEED = 42
CHUNK = 50_000


def match_probability(similarity: float, rows: int = ROWS, permutations: int = PERMUTATIONS) -> float:
    """Chance that banding finds a pair: 1 - (1 - s^rows)^(permutations / rows) (Indyk and Motwani, 1998)."""
    return float(1 - (1 - similarity**rows) ** (permutations // rows))


def near_pairs(
    texts: Sequence[str], groups: Sequence[Hashable], threshold: float
) -> list[tuple[int, int, float]]:
    """Pairs (i, j, similarity) with i < j, the same group, and similarity of at least `threshold`.

    Similarity is the exact Jaccard similarity of character shingles; banding may miss a pair with the
    probability 1 - `match_probability`. Sorted by (i, j).
    """
    sets = [shingles(text) for text in texts]
    found = []
    for i, j in sorted(_candidates(sets, groups)):
        a, b = sets[i], sets[j]
        small, large = sorted((len(a), len(b)))
        if small >= threshold * large and (score := jaccard(a, b)) >= threshold:
            found.append((i, j, score))
    return found


def _candidates(sets: Sequence[frozenset[str]], groups: Sequence[Hashable]) -> set[tuple[int, int]]:
    buckets: dict[Hashable, list[int]] = defaultdict(list)
    for i, signature in enumerate(_signatures(sets)):
        for start in range(0, PERMUTATIONS, ROWS):
            buckets[groups[i], start, *signature[start : start + ROWS]].append(i)
    return {pair for members in buckets.values() if len(members) > 1 for pair in combinations(members, 2)}


def _signatures(sets: Sequence[frozenset[str]]) -> Iterable[list[int]]:
    for start in range(0, len(sets), CHUNK):
        chunk = [sorted(s) for s in sets[start : start + CHUNK]]
        yield from RMinHash.digests_from_token_sets(chunk, PERMUTATIONS, SEED)
