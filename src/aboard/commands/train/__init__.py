"""`aboard train`: prepares a training run (data, model, memory, files on the nodes, checkpoint) and launches it."""
