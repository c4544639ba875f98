// A test double of NVRTC: compiles the text of a kernel with g++ against twin.h, to a shared library in the place of a cubin.
// Built with TWIN_FOLDER (of this file) and TWIN_RUNTIME (the double of the CUDA runtime, which kernels link to).
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
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

// The text that g++ gets: the kernel's, and each entry point by the address of its one argument, and that one's size.
static std::string textFor(const std::string &source) {
  std::string text = "#include \"twin.h\"\n#line 1\n" + source + "\n";
  for (size_t i = 0; (i = source.find("ENTRY(", i)) != std::string::npos; i++) {
    char name[200], parameter[200];
    if (sscanf(source.c_str() + i, "ENTRY(%*u) %199[a-zA-Z0-9_](const %199[^)]", name, parameter) != 2) continue;
    *strrchr(parameter, ' ') = 0; // its name, behind its type
    text += std::string("extern \"C\" __attribute__((no_sanitize(\"thread\"))) void twin_") + name + "(void *args) { " + name +
            "(*(const " + parameter + " *)args); }\nextern \"C\" { extern const size_t twinBytes_" + name + " = sizeof(" + parameter + "); }\n";
  }
  return text;
}

// Compiles a text to `to`, and writes what g++ says to `log`. The library takes its place by a rename, so that it is there in full or not.
static int compileTo(const std::string &text, const std::string &to, const std::string &log) {
  char folder[] = "/tmp/fullyshard-nvrtc-twin-XXXXXX";
  if (!mkdtemp(folder)) return -1;
  std::string at = folder, made = to + ".partial";
  std::ofstream(at + "/kernel.cpp") << text;
  std::string flags = " -std=c++17 -O1 -fPIC -ffp-contract=off -fno-strict-aliasing -fsanitize=thread -w"
                      " --param tsan-instrument-func-entry-exit=0";
  std::string command = "g++" + flags + " -I '" TWIN_FOLDER "' -c '" + at + "/kernel.cpp' -o '" + at + "/kernel.o' 2>'" + log +
                        "' && g++ -shared -o '" + made + "' '" + at + "/kernel.o' '" TWIN_RUNTIME "' -lm 2>>'" + log + "'";
  int status = system(command.c_str());
  if (status == 0) status = rename(made.c_str(), to.c_str());
  for (const char *name : {"/kernel.cpp", "/kernel.o"}) unlink((at + name).c_str());
  rmdir(folder);
  return status;
}

// Ranks compile the same texts at the same moment: the first one does, and the others take what it made, which is kept beside the doubles.
API int nvrtcCompileProgram(void *program, int, const char *const *) {
  Program &p = *(Program *)program;
  std::string text = textFor(p.source), runtime = TWIN_RUNTIME, kept = runtime.substr(0, runtime.rfind('/')) + "/compiled";
  mkdir(kept.c_str(), 0777);
  kept += "/" + std::to_string(std::hash<std::string>{}(text));
  std::string library = kept + ".so", log = kept + ".log";
  int lock = open((kept + ".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
  if (lock < 0 || flock(lock, LOCK_EX) != 0) return 11;
  int status = access(library.c_str(), R_OK) == 0 ? 0 : compileTo(text, library, log);
  p.log = readFile(log);
  p.cubin = status == 0 ? readFile(library) : "";
  close(lock);
  return p.cubin.empty() ? 6 : 0;
}
API int nvrtcGetProgramLogSize(void *p, size_t *n) { return *n = ((Program *)p)->log.size() + 1, 0; }
API int nvrtcGetProgramLog(void *p, char *text) { return strcpy(text, ((Program *)p)->log.c_str()), 0; }
API int nvrtcGetCUBINSize(void *p, size_t *n) { return *n = ((Program *)p)->cubin.size(), 0; }
API int nvrtcGetCUBIN(void *p, char *to) {
  const std::string &cubin = ((Program *)p)->cubin;
  return memcpy(to, cubin.data(), cubin.size()), 0;
}
