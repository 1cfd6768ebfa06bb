"""What is compiled for this machine: the C++ sources, the library made of them, and how Python asks it."""
