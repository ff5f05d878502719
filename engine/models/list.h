/*
 * The models, one line each: TESS_MODEL(name, built, hint). `built` 1 means that tess_model_<name>
 * exists; 0 that the name is known but its code is not in this build, and the hint has the reason.
 */
TESS_MODEL(mlp, 1, "")
TESS_MODEL(cnn, 1, "")
TESS_MODEL(wrn, 1, "")
TESS_MODEL(gpt, 1, "")
