"""Input pipelines: their stages, elements, and what mapped functions do."""
