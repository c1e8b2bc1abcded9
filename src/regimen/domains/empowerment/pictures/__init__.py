"""Pictures of solved worlds: power over a map, the robot's policy, power over time, and episodes."""
