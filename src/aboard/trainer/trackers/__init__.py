"""Forwards a run's metrics to W&B, MLflow and TensorBoard, in processes of their own."""
