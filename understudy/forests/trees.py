"""Tree ensembles as flat arrays: prediction in numpy alone, equal to scikit-learn's to the bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor

#: Arrays of FlatTrees as they are stored, with their types.
ARRAYS = {
    "roots": np.dtype("<i4"),
    "feature": np.dtype("<i2"),
    "threshold": np.dtype("<f8"),
    "left": np.dtype("<i4"),
    "right": np.dtype("<i4"),
    "value": np.dtype("<f8"),
}


@dataclass(frozen=True)
class FlatTrees:
    """Binary trees, node after node: a node sends x[feature] <= threshold to `left`; a leaf has
    left = -1. `roots` holds each tree's first node. Indices count over all trees."""

    roots: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    value: np.ndarray

    def __post_init__(self) -> None:
        nodes = len(self.feature)
        lengths = {len(self.threshold), len(self.left), len(self.right), len(self.value)}
        inner = self.left >= 0
        valid = (
            lengths == {nodes}
            and len(self.roots) > 0
            and bool(np.all((self.roots >= 0) & (self.roots < nodes)))
            # Children come after their parent, so that walking down always ends.
            and bool(np.all(self.left[inner] > np.flatnonzero(inner)))
            and bool(np.all(self.right[inner] > np.flatnonzero(inner)))
            and bool(np.all(self.left < nodes) and np.all(self.right < nodes))
            and bool(np.all(self.feature >= 0))
        )
        if not valid:
            raise ValueError("inconsistent tree arrays")

    def leaves(self, x: np.ndarray) -> np.ndarray:
        """Leaf values, shape (trees, rows), for x of shape (rows, features)."""
        rows = np.arange(len(x))
        out = np.empty((len(self.roots), len(x)))
        for tree, root in enumerate(self.roots):
            node = np.full(len(x), root, dtype=np.int64)
            active = rows[self.left[node] >= 0]
            while len(active):
                at = node[active]
                goes_left = x[active, self.feature[at]] <= self.threshold[at]
                node[active] = np.where(goes_left, self.left[at], self.right[at])
                active = active[self.left[node[active]] >= 0]
            out[tree] = self.value[node]
        return out


@dataclass(frozen=True)
class Ensemble:
    """Extremely randomized trees, averaged with gradient boosting.

    The mean of both is the estimate of log(t / scale); the spread of the random trees, times
    `z90`, half of a 90 % interval. Training ranges by feature tell extrapolation.
    """

    random_trees: FlatTrees
    boosted_trees: FlatTrees
    baseline: float
    z90: float

    def predict(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Estimate and half-width of the 90 % interval of log(t / scale), each of shape (rows,)."""
        random = random_trees_leaves(self.random_trees, x)
        mean = (_sum(random) / len(random) + self._boosted(x)) / 2
        return mean, self.z90 * random.std(axis=0)

    def _boosted(self, x: np.ndarray) -> np.ndarray:
        return boosted_sum(self.boosted_trees, self.baseline, x)


def random_trees_leaves(trees: FlatTrees, x: np.ndarray) -> np.ndarray:
    """Leaf values of a forest, which scikit-learn feeds with float32."""
    return trees.leaves(x.astype(np.float32).astype(np.float64))


def boosted_sum(trees: FlatTrees, baseline: float, x: np.ndarray) -> np.ndarray:
    """Prediction of gradient boosting: the baseline plus every tree, added in order."""
    total = np.full(len(x), baseline)
    for leaf in trees.leaves(x):
        total += leaf
    return total


def _sum(values: np.ndarray) -> np.ndarray:
    """Row by row, in order: numpy's own sum pairs terms and differs from scikit-learn's."""
    total = np.zeros(values.shape[1])
    for row in values:
        total += row
    return total


def flatten_forest(model: ExtraTreesRegressor) -> FlatTrees:
    """The trees of a fitted forest."""
    parts = []
    for estimator in model.estimators_:
        tree = estimator.tree_
        parts.append(
            (
                np.maximum(tree.feature, 0),
                tree.threshold,
                tree.children_left,
                tree.children_right,
                tree.value[:, 0, 0],
            )
        )
    return _join(parts)


def flatten_boosting(model: HistGradientBoostingRegressor) -> tuple[FlatTrees, float]:
    """The trees of fitted gradient boosting, and its baseline."""
    parts = []
    for (predictor,) in model._predictors:  # no public access to the nodes exists
        nodes = predictor.nodes
        leaf = nodes["is_leaf"].astype(bool)
        parts.append(
            (
                np.where(leaf, 0, nodes["feature_idx"]),
                np.where(leaf, 0.0, nodes["num_threshold"]),
                np.where(leaf, -1, nodes["left"].astype(np.int64)),
                np.where(leaf, -1, nodes["right"].astype(np.int64)),
                np.where(leaf, nodes["value"], 0.0),
            )
        )
    return _join(parts), float(np.asarray(model._baseline_prediction).ravel()[0])


def _join(parts: list[tuple[np.ndarray, ...]]) -> FlatTrees:
    """Concatenates trees and makes their indices count over all of them."""
    starts = np.cumsum([0] + [len(p[0]) for p in parts])[:-1]

    def shifted(column: int) -> np.ndarray:
        moved = [
            np.where(p[column] >= 0, p[column] + s, -1) for p, s in zip(parts, starts, strict=True)
        ]
        return np.concatenate(moved).astype(ARRAYS["left"])

    return FlatTrees(
        starts.astype(ARRAYS["roots"]),
        np.concatenate([p[0] for p in parts]).astype(ARRAYS["feature"]),
        np.concatenate([p[1] for p in parts]).astype(ARRAYS["threshold"]),
        shifted(2),
        shifted(3),
        np.concatenate([p[4] for p in parts]).astype(ARRAYS["value"]),
    )
