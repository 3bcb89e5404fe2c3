"""The paper's values of the objective, written once: losses and recipes read them here, recipes without torch."""

MARGIN = 0.2
SET_MARGIN = 0.6  # of GD and ISD
SCALE = 0.5  # of GD and ISD
TEMPERATURE = 0.01
TRIPLET_WEIGHT = 1.0
GD_WEIGHT = 0.1
ISD_WEIGHT = 0.1
MMD_WEIGHT = 0.01
DIV_WEIGHT = 0.01
CON_WEIGHT = 0.0
