"""Use a trained model: export it for other programs, or predict with it.

write_export     writes a folder with the model, its description, its card and the self-check
trained_model    the global model of a run
formats          with preprocessing and softmax, in files; the only one that imports onnx
prediction       opens a run or an export; image files in, probabilities out
model_card       MODEL_CARD.md
"""
