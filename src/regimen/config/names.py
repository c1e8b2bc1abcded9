"""Names that people know from other trainers, and ours. One table: it answers unknown settings and makes the tables of
docs/migrating.md. Jax-free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SB3, CLEANRL, RLLIB, OTHER = "Stable-Baselines3", "CleanRL", "RLlib", "other"
TRAINERS = (SB3, CLEANRL, RLLIB, OTHER)


@dataclass(frozen=True)
class Name:
    """A name elsewhere. `ours` is one setting or several, of which the first that the algorithm has is meant; none
    where there is nothing to set, and `note` says why."""

    theirs: str
    ours: tuple[str, ...]
    trainers: tuple[str, ...]
    note: str = ""


def _n(theirs: str, ours: str, *trainers: str, note: str = "") -> Name:
    return Name(theirs, tuple(ours.split()), trainers or (OTHER,), note)


PER_ENV = "ours counts steps over all environments: theirs times the number of environments"
NAMES: tuple[Name, ...] = (
    # how much, how often
    _n("total_timesteps", "total_steps", SB3, CLEANRL),
    _n("timesteps_total", "total_steps", RLLIB),
    _n("num_env_steps_sampled_lifetime", "total_steps", RLLIB),
    _n("total_env_steps", "total_steps"),
    _n("max_steps", "total_steps"),
    _n("num_timesteps", "total_steps"),
    _n("episodes_total", "total_episodes", RLLIB),
    _n("total_batches", "total_episodes", note="batches times episodes per batch"),
    _n("num_episodes", "total_episodes"),
    _n("max_episodes", "total_episodes"),
    _n("n_steps", "rollout.steps", SB3, note=PER_ENV),
    _n("num_steps", "rollout.steps", CLEANRL, note=PER_ENV),
    _n("rollout_fragment_length", "rollout.steps", RLLIB, note=PER_ENV),
    _n("train_freq", "rollout.steps", SB3, note=PER_ENV),
    _n("train_batch_size", "rollout.steps", RLLIB, note="env steps collected before each update"),
    _n("train_batch_size_per_learner", "rollout.steps", RLLIB),
    _n("update_timestep", "rollout.steps"),
    _n("rollout_length", "rollout.steps", note=PER_ENV),
    _n("unroll_length", "rollout.steps", note=PER_ENV),
    _n("horizon_length", "rollout.steps", note=PER_ENV),
    _n("rollout_batch_size", "rollout.episodes", note="whole episodes collected before each update"),
    _n("episodes_per_update", "rollout.episodes"),
    _n("episodes_per_batch", "rollout.episodes"),
    _n("n_envs", "rollout.num_envs", SB3),
    _n("num_envs_per_env_runner", "rollout.num_envs", RLLIB, note="ours counts all environments"),
    _n("num_envs_per_worker", "rollout.num_envs", RLLIB, note="ours counts all environments"),
    _n("num_actors", "rollout.num_envs"),
    _n("num_env_runners", "engine.workers", RLLIB, note="with --engine ray"),
    _n("num_workers", "engine.workers", RLLIB, note="with --engine ray"),
    _n("num_rollout_workers", "engine.workers", RLLIB, note="with --engine ray"),
    _n("num_sgd_iter", "algo.epochs", RLLIB),
    _n("num_epochs", "algo.epochs", RLLIB),
    _n("n_epochs", "algo.epochs", SB3),
    _n("update_epochs", "algo.epochs", CLEANRL),
    _n("epochs_per_update", "algo.epochs"),
    _n("ppo_epochs", "algo.epochs"),
    _n("k_epochs", "algo.epochs"),
    _n("batch_size", "algo.minibatch_size algo.batch_size", SB3, CLEANRL, note="rows of one gradient step"),
    _n("sgd_minibatch_size", "algo.minibatch_size", RLLIB),
    _n("mini_batch_size", "algo.minibatch_size"),
    _n("num_minibatches", "algo.minibatch_size", CLEANRL, note="rows of one minibatch: the batch divided by theirs"),
    _n("nminibatches", "algo.minibatch_size", note="rows of one minibatch: the batch divided by theirs"),
    # learning
    _n("learning_rate", "algo.lr", SB3, CLEANRL),
    _n("policy_lr", "algo.lr", CLEANRL),
    _n("actor_lr", "algo.lr", RLLIB),
    _n("q_lr", "algo.critic_lr", CLEANRL),
    _n("anneal_lr", "algo.lr_schedule", CLEANRL, note="linear, with algo.lr_end 0"),
    _n("lr_decay", "algo.lr_schedule", note="linear or cosine"),
    _n("discount", "algo.gamma"),
    _n("discount_factor", "algo.gamma"),
    _n("gae_lam", "algo.gae_lambda"),
    _n("lambda_", "algo.gae_lambda", RLLIB),
    _n("lam", "algo.gae_lambda"),
    _n("tau_gae", "algo.gae_lambda"),
    _n("use_gae", "algo.returns", RLLIB, note="gae, n_step or monte_carlo"),
    _n("clip_range", "algo.clip_eps", SB3),
    _n("clip_coef", "algo.clip_eps", CLEANRL),
    _n("clip_param", "algo.clip_eps", RLLIB),
    _n("clip_epsilon", "algo.clip_eps"),
    _n("clip_ratio", "algo.clip_eps"),
    _n("eps_clip", "algo.clip_eps"),
    _n("cliprange", "algo.clip_eps"),
    _n("clip_range_vf", "algo.vf_clip", SB3),
    _n("clip_vloss", "algo.vf_clip", CLEANRL, note="a distance, not a switch; off by default"),
    _n("vf_clip_param", "algo.vf_clip", RLLIB),
    _n("entropy_coef", "algo.ent_coef"),
    _n("entropy_coeff", "algo.ent_coef", RLLIB),
    _n("entropy_coefficient", "algo.ent_coef"),
    _n("entropy_weight", "algo.ent_coef"),
    _n("value_coef", "algo.vf_coef"),
    _n("value_loss_coef", "algo.vf_coef"),
    _n("vf_loss_coeff", "algo.vf_coef", RLLIB),
    _n("value_function_coef", "algo.vf_coef"),
    _n("grad_clip", "algo.max_grad_norm", RLLIB),
    _n("max_grad", "algo.max_grad_norm"),
    _n("gradient_clip", "algo.max_grad_norm"),
    _n("clip_grad_norm", "algo.max_grad_norm"),
    _n("norm_adv", "algo.normalize_advantage", CLEANRL),
    _n("normalize_advantages", "algo.normalize_advantage"),
    _n("use_kl_loss", "algo.kl_coef", RLLIB, note="0 is off"),
    _n("kl_coeff", "algo.kl_coef", RLLIB),
    _n("desired_kl", "algo.kl_target"),
    _n("vtrace_clip_rho_threshold", "algo.rho_clip", RLLIB),
    _n("vtrace_clip_pg_rho_threshold", "algo.pg_rho_clip", RLLIB),
    # replay
    _n("replay_buffer_capacity", "algo.buffer_size", RLLIB),
    _n("replay_size", "algo.buffer_size"),
    _n("gradient_steps", "algo.update_ratio", SB3, note="gradient steps per env step: theirs divided by train_freq"),
    _n("training_intensity", "algo.update_ratio", RLLIB, note="gradient steps per env step"),
    _n("utd_ratio", "algo.update_ratio"),
    _n("start_timesteps", "algo.learning_starts"),
    _n("num_steps_sampled_before_learning_starts", "algo.learning_starts", RLLIB),
    _n("polyak", "algo.tau", note="ours is the share of the new network: 1 - theirs"),
    _n(
        "target_entropy",
        "algo.target_entropy_continuous algo.target_entropy_discrete",
        SB3,
        RLLIB,
        note="per dimension",
    ),
    _n("initial_alpha", "algo.alpha", RLLIB),
    _n("autotune", "algo.learn_alpha", CLEANRL),
    _n("policy_frequency", "algo.policy_delay", CLEANRL),
    _n("cql_alpha", "algo.min_q_weight"),
    _n("bc_iters", "algo.bc_steps", RLLIB),
    # network
    _n("net_arch", "network.hidden", SB3),
    _n("fcnet_hiddens", "network.hidden", RLLIB),
    _n("hidden_sizes", "network.hidden"),
    _n("hidden_dim", "network.hidden"),
    _n("hidden_layers", "network.hidden"),
    _n("activation_fn", "network.activation", SB3),
    _n("fcnet_activation", "network.activation", RLLIB),
    _n("use_lstm", "network.memory", RLLIB, note="gru"),
    _n("lstm_cell_size", "network.memory_size", RLLIB),
    _n("lstm_hidden_size", "network.memory_size"),
    _n("log_std_initial", "algo.log_std_init"),
    _n("normalize_observations", "algo.normalize_obs"),
    _n("norm_obs", "algo.normalize_obs", SB3),
    _n("norm_reward", "algo.normalize_reward", SB3),
    # looking
    _n("eval_freq", "eval.every", SB3, note="`5000 steps`, `10` updates or `20 episodes`"),
    _n("evaluation_interval", "eval.every", RLLIB),
    _n("eval_interval", "eval.every"),
    _n("n_eval_episodes", "eval.episodes", SB3),
    _n("evaluation_duration", "eval.episodes", RLLIB),
    _n("num_eval_episodes", "eval.episodes"),
    _n("log_interval", "log.every", SB3),
    _n("save_freq", "checkpoint.every", SB3),
    _n("save_model_every", "checkpoint.every"),
    _n("checkpoint_frequency", "checkpoint.every", RLLIB),
    _n("checkpoint_freq", "checkpoint.every", RLLIB),
    _n("checkpoint_every", "checkpoint.every"),
    _n("stop_reward", "stop.target_return"),
    _n(
        "episode_reward_mean", "stop.target_return", RLLIB, note="as a stopping rule; as a metric `rollout/return_mean`"
    ),
    _n("reward_threshold", "stop.target_return", SB3),
    _n("max_no_improvement_evals", "stop.no_improvement", SB3),
    _n("exp_name", "track.experiment", CLEANRL),
    _n("experiment_name", "track.experiment", RLLIB),
    _n("tensorboard_log", "out", SB3, note="curves are drawn from the run directory and mirrored into MLflow"),
    _n("log_dir", "out"),
    _n("save_dir", "out"),
    _n("output_dir", "out"),
    _n("num_gpus", "devices", RLLIB),
    _n("cuda", "device", CLEANRL, note="auto, cpu or gpu"),
    _n("env_id", "env", CLEANRL),
    _n("env_name", "env"),
    _n("random_seed", "seed"),
    _n("env_config", "env_args", RLLIB, note="flags `--env.KEY VALUE`"),
    _n("env_kwargs", "env_args", SB3, note="flags `--env.KEY VALUE`"),
    _n("load_model", "init_from"),
    _n("resume_from", "init_from", note="or `regimen resume RUN`, which goes on exactly"),
)
BY_NAME = {name.theirs: name for name in NAMES}


def known(key: str) -> Name | None:
    """What a key of another trainer is here; with or without a section, dashes or underscores."""
    return BY_NAME.get(key.rsplit(".", 1)[-1].replace("-", "_").lower())


def answer(key: str, settings: Iterable[str], dash: str = "") -> str | None:
    """The end of an error about an unknown setting: `; here it is algo.clip_eps`. `settings` are those of the chosen
    algorithm. None where nobody else calls anything so."""
    found = known(key)
    if found is None:
        return None
    has = set(settings)
    chosen = next((name for name in found.ours if name in has), found.ours[0])
    if chosen == key:  # it is called so here, in another algorithm
        return None
    shown = dash + (chosen.replace("_", "-") if dash else chosen)
    if chosen in ("env_args", "env"):
        shown = {"env_args": "--env.KEY" if dash else "env_args", "env": "the environment's name" if dash else "env"}[
            chosen
        ]
    return f"; here it is {shown}" + (f" ({found.note})" if found.note else "")


def table(trainer: str) -> list[str]:
    """The Markdown table of one trainer's names."""
    lines = ["| theirs | ours | |", "|---|---|---|"]
    for name in NAMES:
        if trainer in name.trainers:
            ours = " or ".join(f"`{n}`" for n in name.ours)
            lines.append(f"| `{name.theirs}` | {ours} | {name.note} |")
    return lines


def page(text: str) -> str:
    """A page with its tables written anew: what stands between `<!-- names: TRAINER -->` and `<!-- end -->`."""
    out, skipping = [], False
    for line in text.splitlines():
        if line.startswith("<!-- end -->"):
            skipping = False
        if not skipping:
            out.append(line)
        if line.startswith("<!-- names: "):
            trainer = line.removeprefix("<!-- names: ").removesuffix(" -->")
            out += ["", *table(trainer), ""]
            skipping = True
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    import sys
    from pathlib import Path

    for argument in sys.argv[1:]:
        Path(argument).write_text(page(Path(argument).read_text(encoding="utf-8")), encoding="utf-8")
