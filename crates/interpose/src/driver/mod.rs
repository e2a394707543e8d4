//! The functions of CUDA's driver.
