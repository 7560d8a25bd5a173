"""Built-in misdiagnosis tables: which classes of published data sets are mistaken for which.

Each line has the accepted spellings of a class, separated by "|" (the first is its name in this
table), and the names of its candidates, separated by ", ". No candidates means any other class.
"""

from __future__ import annotations

_ANY = ""

# The paper's table for Kvasir-Capsule; its "Mucosal Atrophy" is "Reduced mucosal view" in the data.
KVASIR = {
    "Normal|Normal clean mucosa": _ANY,
    "Ileocecal valve|Ileo-cecal valve": "Mucosal atrophy, Pylorus",
    "Mucosal atrophy|Reduced mucosal view": "Ileocecal valve, Erosion",
    "Pylorus": "Ulcer, Foreign body",
    "Angiectasia": "Erosion, Blood",
    "Ulcer": "Pylorus, Foreign body",
    "Foreign body|Foreign bodies": "Ulcer, Lymphangiectasia",
    "Lymphangiectasia": "Erosion, Foreign body",
    "Erosion": "Mucosal atrophy, Angiectasia",
    "Blood|Blood - fresh": "Angiectasia, Erosion",
}
# The paper's table for OIA-ODIR, read by position N, D, G, C, A, H, M, O. What the paper calls
# "Hypertensive Retinopathy" has the position of diabetes in the data set, so that spelling is
# accepted only in PAPER_ODIR, together with "Hypertension Complications".
ODIR = {
    "N|Normal": _ANY,
    "D|Diabetes|Diabetic retinopathy": "G, H",
    "G|Glaucoma": "C, D",
    "C|Cataract": "A, G",
    "A|AMD|Age-related macular degeneration": "C, D",
    "H|Hypertension|Hypertensive retinopathy": "M, A",
    "M|Myopia|Pathologic myopia|Pathological myopia": "H, O",
    "O|Other|Others|Other diseases|Other diseases/abnormalities": "M, H",
}
_PAPER_SPELLINGS = {"D": "D|Hypertensive retinopathy", "H": "H|Hypertension complications"}
PAPER_ODIR = {_PAPER_SPELLINGS.get(names[0], names): wrong for names, wrong in ODIR.items()}
# Colorectal tissue (PathMNIST / NCT-CRC-HE): ours, argued from how the patches look at this
# magnification.
PATHMNIST = {
    # empty fat cells: mostly white, thin septa
    "adipose|ADI": "background, mucus",
    # glass beside fat; pale mucus without texture
    "background|BACK": "adipose, mucus",
    # floats in mucus; "dirty" necrosis fills tumour glands
    "debris|DEB": "mucus, colorectal adenocarcinoma epithelium",
    # the lamina propria is full of them; nuclear dust imitates them
    "lymphocytes|LYM": "normal colon mucosa, debris",
    # holds cell debris; myxoid stroma is as pale and streaky
    "mucus|MUC": "debris, cancer-associated stroma",
    # pink parallel fibres; muscularis mucosae
    "smooth muscle|MUS": "cancer-associated stroma, normal colon mucosa",
    # glands; lymphoid lamina propria
    "normal colon mucosa|NORM": "colorectal adenocarcinoma epithelium, lymphocytes",
    # spindle cells and collagen; necrosis at its border
    "cancer-associated stroma|STR": "smooth muscle, debris",
    # well differentiated glands; necrosis
    "colorectal adenocarcinoma epithelium|TUM": "normal colon mucosa, debris",
}
# The built-in synthetic tissue: neighbours on the way from normal to cancer, and the two fibrous
# tissues.
SYNTHETIC = {
    "normal mucosa": "adenoma, lymphoid",
    "adenoma": "normal mucosa, adenocarcinoma",
    "adenocarcinoma": "adenoma, stroma",
    "lymphoid": "normal mucosa, adenocarcinoma",
    "stroma": "muscle, adenocarcinoma",
    "muscle": "stroma, normal mucosa",
}
TABLES = {
    "kvasir": KVASIR,
    "odir": ODIR,
    "odir (paper's names)": PAPER_ODIR,
    "pathmnist": PATHMNIST,
    "synthetic": SYNTHETIC,
}
