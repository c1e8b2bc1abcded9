"""The code of the MLflow model: MLflow copies this file beside the policy folder and runs it to load the model.

Nothing is pickled. `mlflow.pyfunc.load_model("models:/cartpole-ppo@champion").predict(observations)` gives the greedy
action of each observation.
"""

import mlflow.models
import numpy as np
from mlflow.pyfunc.model import PythonModel


class RegimenPolicy(PythonModel):
    """A trained policy on a batch of observations."""

    def load_context(self, context):
        import regimen

        self.policy = regimen.load_policy(context.artifacts["policy"])

    def predict(self, context, model_input: np.ndarray, params=None):
        """Actions [N, ...] for observations [N, ...]: an array, a list of observations or a data frame of N rows.

        Dict observations are a dict of arrays [N, ...]. (The type hint only tells MLflow not to check the input.)
        """
        actions = self.policy.act_batch(self._observations(model_input))
        return actions if isinstance(actions, (dict, tuple)) else np.asarray(actions)

    def _observations(self, value):
        if isinstance(value, dict):
            return {name: np.asarray(part) for name, part in value.items()}
        if hasattr(value, "to_numpy"):  # pandas, without importing it
            value = value.to_numpy()
            if value.dtype == object:  # one column that holds whole observations
                value = np.stack([np.stack([np.asarray(cell) for cell in row]) for row in value])
        array = np.asarray(value)
        shape = getattr(getattr(self.policy, "observation_space", None), "shape", None)
        return array if shape is None else array.reshape(len(array), *shape)


mlflow.models.set_model(RegimenPolicy())
