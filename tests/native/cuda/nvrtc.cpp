// A test double of NVRTC: compiles the text of a kernel with g++ against twin.h, to a shared library in the place of a cubin.
// Built with TWIN_FOLDER (of this file) and TWIN_RUNTIME (the double of the CUDA runtime, which kernels link to).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <fstream>
#include <sstream>
#include <string>
#define API extern "C" __attribute__((visibility("default")))

struct Program { std::string source, log, cubin; };

static std::string readFile(const std::string &path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

API const char *nvrtcGetErrorString(int status) {
  return status == 0 ? "NVRTC_SUCCESS" : status == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_INTERNAL_ERROR";
}
API int nvrtcVersion(int *major, int *minor) { return *major = 13, *minor = 0, 0; }
API int nvrtcGetNumSupportedArchs(int *n) { return *n = 1, 0; }
API int nvrtcGetSupportedArchs(int *list) { return *list = 90, 0; }
API int nvrtcCreateProgram(void **program, const char *source, const char *, int, const char *const *, const char *const *) {
  *program = new Program{source, "", ""};
  return 0;
}
API int nvrtcDestroyProgram(void **program) { return delete (Program *)*program, *program = nullptr, 0; }

API int nvrtcCompileProgram(void *program, int, const char *const *) {
  Program &p = *(Program *)program;
  char folder[] = "/tmp/fullyshard-nvrtc-twin-XXXXXX";
  if (!mkdtemp(folder)) return 11;
  std::string at = folder, text = "#include \"twin.h\"\n#line 1\n" + p.source + "\n";
  // Each entry point by the address of its one argument, and that one's size.
  for (size_t i = 0; (i = p.source.find("ENTRY(", i)) != std::string::npos; i++) {
    char name[200], parameter[200];
    if (sscanf(p.source.c_str() + i, "ENTRY(%*u) %199[a-zA-Z0-9_](const %199[^)]", name, parameter) != 2) continue;
    *strrchr(parameter, ' ') = 0; // its name, behind its type
    text += std::string("extern \"C\" __attribute__((no_sanitize(\"thread\"))) void twin_") + name + "(void *args) { " + name +
            "(*(const " + parameter + " *)args); }\nextern \"C\" { extern const size_t twinBytes_" + name + " = sizeof(" + parameter + "); }\n";
  }
  std::ofstream(at + "/kernel.cpp") << text;
  std::string flags = " -std=c++17 -O1 -fPIC -ffp-contract=off -fno-strict-aliasing -fsanitize=thread -w"
                      " --param tsan-instrument-func-entry-exit=0";
  std::string command = "g++" + flags + " -I '" TWIN_FOLDER "' -c '" + at + "/kernel.cpp' -o '" + at + "/kernel.o' 2>'" + at +
                        "/log' && g++ -shared -o '" + at + "/kernel.so' '" + at + "/kernel.o' '" TWIN_RUNTIME "' -lm 2>>'" + at + "/log'";
  int status = system(command.c_str());
  p.log = readFile(at + "/log");
  p.cubin = readFile(at + "/kernel.so");
  for (const char *name : {"/kernel.cpp", "/kernel.o", "/kernel.so", "/log"}) unlink((at + name).c_str());
  rmdir(folder);
  return status == 0 && !p.cubin.empty() ? 0 : 6;
}
API int nvrtcGetProgramLogSize(void *p, size_t *n) { return *n = ((Program *)p)->log.size() + 1, 0; }
API int nvrtcGetProgramLog(void *p, char *text) { return strcpy(text, ((Program *)p)->log.c_str()), 0; }
API int nvrtcGetCUBINSize(void *p, size_t *n) { return *n = ((Program *)p)->cubin.size(), 0; }
API int nvrtcGetCUBIN(void *p, char *to) {
  const std::string &cubin = ((Program *)p)->cubin;
  return memcpy(to, cubin.data(), cubin.size()), 0;
}
