"""Image files to pixels: PNG, JPEG and TIFF through Pillow, DICOM through pydicom."""
