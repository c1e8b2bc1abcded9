"""V-trace as the paper writes it: sums over the rest of the episode instead of a recursion, row by row in numpy."""

import numpy as np


def vtrace(log_rho, reward, value, next_value, done, gamma, trace_lambda, rho_clip, c_clip, pg_rho_clip):
    """Targets, advantages and weights of the policy gradient [T, B] (Espeholt et al. 2018, eq. 1 and section 4.2).
    `next_value` is 0 where an episode terminated; where none ended it is the value of the next row."""
    rho = np.exp(np.asarray(log_rho, np.float64))
    steps, columns = rho.shape
    target, advantage = np.zeros((2, steps, columns))
    for b in range(columns):
        for t in range(steps):
            target[t, b], weight = value[t, b], 1.0
            for k in range(t, steps):
                error = reward[k, b] + gamma * next_value[k, b] - value[k, b]
                target[t, b] += weight * min(rho[k, b], rho_clip) * error
                if done[k, b]:
                    break
                weight *= gamma * trace_lambda * min(rho[k, b], c_clip)
        for t in range(steps):
            cut = done[t, b] or t == steps - 1
            later = next_value[t, b] if cut else target[t + 1, b]
            advantage[t, b] = reward[t, b] + gamma * later - value[t, b]
    return target, advantage, np.minimum(rho, pg_rho_clip)
