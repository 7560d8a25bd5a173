"""Networks: a small CNN, ResNet-18/50, EfficientNet-Lite0, and a head alone for frozen features.

This package imports nothing by itself: `models.augment` is needed long before torch is.
"""
