"""Fields of application, one folder each: environments, presets, analyses and verbs (`regimen.config.domains`)."""
