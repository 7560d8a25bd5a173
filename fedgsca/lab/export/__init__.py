"""Use a trained model: export it for other programs, or predict with it.

write_export     writes a folder with the model, its description, its card and the self-check
trained_model    the global model of a run; end_to_end adds preprocessing and softmax
formats          the file formats; the only file that imports the onnx packages
prediction       opens a run or an export; image files in, probabilities out
model_card       MODEL_CARD.md
"""
