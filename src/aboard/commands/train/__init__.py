"""`aboard train`: prepares a training (data, model, memory, files on the nodes, checkpoint) and launches it."""
