/*
 * NVRTC without a compiler. A program is accepted as it is; compiling it reads the signatures of
 * its kernels (cuda_source.c) and hands out a PTX text that declares them, which the driver's side
 * (ptx.c) loads. PTX and cubin are the same text. So kernels have their names and the sizes of their
 * parameters, but no code: no register counts, and an error in the source goes unnoticed; only a real
 * NVRTC finds those.
 *
 * Lowered names: C++ mangling would need a compiler, so a name expression (`add<float>`) is lowered
 * to an identifier made of its own text (add_float_).
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_source.h"
#include "interceptor.h"
#include "versions.h"

typedef int nvrtcResult;
typedef struct us_nvrtc_program *nvrtcProgram;
enum {
    NVRTC_SUCCESS = 0,
    NVRTC_ERROR_OUT_OF_MEMORY = 1,
    NVRTC_ERROR_INVALID_INPUT = 3,
    NVRTC_ERROR_INVALID_PROGRAM = 4,
    NVRTC_ERROR_COMPILATION = 6,
    NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION = 8,
    NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION = 9,
    NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID = 10,
};

struct us_nvrtc_program {
    char *source;
    char **expressions, **lowered;
    size_t expression_count;
    char *ptx; /* NULL until it is compiled */
    char log[256];
};

static const int architectures[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};
enum { ARCHITECTURES = sizeof architectures / sizeof *architectures };

/* PyTorch keeps what it compiles in the user's cache folder, where a run on a real GPU would find
   our text. Read once when PyTorch compiles its first kernel. */
__attribute__((constructor)) static void keep_out_of_caches(void) {
    setenv("USE_PYTORCH_KERNEL_CACHE", "0", 1);
}

US_EXPORT const char *nvrtcGetErrorString(nvrtcResult code) {
    static const char *const names[] = {
        "NVRTC_SUCCESS",
        "NVRTC_ERROR_OUT_OF_MEMORY",
        "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
        "NVRTC_ERROR_INVALID_INPUT",
        "NVRTC_ERROR_INVALID_PROGRAM",
        "NVRTC_ERROR_INVALID_OPTION",
        "NVRTC_ERROR_COMPILATION",
        "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
        "NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION",
        "NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION",
        "NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID",
        "NVRTC_ERROR_INTERNAL_ERROR",
    };
    return code >= 0 && (size_t)code < sizeof names / sizeof *names ? names[code]
                                                                    : "NVRTC_ERROR unknown";
}

US_EXPORT nvrtcResult nvrtcVersion(int *major, int *minor) {
    if (major == NULL || minor == NULL) return NVRTC_ERROR_INVALID_INPUT;
    *major = us_library_versions()->nvrtc_major;
    *minor = us_library_versions()->nvrtc_minor;
    return NVRTC_SUCCESS;
}

US_EXPORT nvrtcResult nvrtcGetNumSupportedArchs(int *count) {
    if (count == NULL) return NVRTC_ERROR_INVALID_INPUT;
    *count = ARCHITECTURES;
    return NVRTC_SUCCESS;
}

US_EXPORT nvrtcResult nvrtcGetSupportedArchs(int *list) {
    if (list == NULL) return NVRTC_ERROR_INVALID_INPUT;
    memcpy(list, architectures, sizeof architectures);
    return NVRTC_SUCCESS;
}

US_EXPORT nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *source,
                                         const char *name, int header_count,
                                         const char *const *headers,
                                         const char *const *include_names) {
    (void)name, (void)header_count, (void)headers, (void)include_names;
    if (program == NULL || source == NULL) return NVRTC_ERROR_INVALID_INPUT;
    struct us_nvrtc_program *made = calloc(1, sizeof *made);
    if (made != NULL) made->source = strdup(source);
    if (made == NULL || made->source == NULL) {
        free(made);
        return NVRTC_ERROR_OUT_OF_MEMORY;
    }
    *program = made;
    return NVRTC_SUCCESS;
}

US_EXPORT nvrtcResult nvrtcDestroyProgram(nvrtcProgram *program) {
    if (program == NULL || *program == NULL) return NVRTC_ERROR_INVALID_PROGRAM;
    struct us_nvrtc_program *old = *program;
    for (size_t i = 0; i < old->expression_count; i++) {
        free(old->expressions[i]);
        free(old->lowered[i]);
    }
    free(old->expressions);
    free(old->lowered);
    free(old->source);
    free(old->ptx);
    free(old);
    *program = NULL;
    return NVRTC_SUCCESS;
}

/* Names -------------------------------------------------------------------------------------- */

/* The identifier that stands for a name expression: "&ns::add<float, 4>" -> "ns__add_float__4_". */
static char *lower(const char *expression) {
    while (*expression == '&' || isspace((unsigned char)*expression)) expression++;
    char *lowered = strdup(expression);
    for (char *c = lowered; c != NULL && *c != '\0'; c++) {
        if (!isalnum((unsigned char)*c) && *c != '_') *c = '_';
    }
    return lowered;
}

US_EXPORT nvrtcResult nvrtcAddNameExpression(nvrtcProgram program, const char *expression) {
    if (program == NULL) return NVRTC_ERROR_INVALID_PROGRAM;
    if (expression == NULL) return NVRTC_ERROR_INVALID_INPUT;
    if (program->ptx != NULL) return NVRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION;
    size_t count = program->expression_count + 1;
    char **expressions = realloc(program->expressions, count * sizeof *expressions);
    if (expressions != NULL) program->expressions = expressions;
    char **lowered = realloc(program->lowered, count * sizeof *lowered);
    if (lowered != NULL) program->lowered = lowered;
    if (expressions == NULL || lowered == NULL) return NVRTC_ERROR_OUT_OF_MEMORY;
    expressions[count - 1] = strdup(expression);
    lowered[count - 1] = lower(expression);
    program->expression_count = count;
    return expressions[count - 1] != NULL && lowered[count - 1] != NULL
               ? NVRTC_SUCCESS
               : NVRTC_ERROR_OUT_OF_MEMORY;
}

US_EXPORT nvrtcResult nvrtcGetLoweredName(nvrtcProgram program, const char *expression,
                                          const char **lowered) {
    if (program == NULL) return NVRTC_ERROR_INVALID_PROGRAM;
    if (expression == NULL || lowered == NULL) return NVRTC_ERROR_INVALID_INPUT;
    if (program->ptx == NULL) return NVRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION;
    for (size_t i = 0; i < program->expression_count; i++) {
        if (strcmp(program->expressions[i], expression) != 0) continue;
        *lowered = program->lowered[i];
        return NVRTC_SUCCESS;
    }
    return NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID;
}

/* Compilation -------------------------------------------------------------------------------- */

static void write_entry(FILE *out, const char *name, const struct us_source_kernel *kernel) {
    fprintf(out, ".visible .entry %s(", name);
    for (uint32_t i = 0; i < kernel->parameter_count; i++) {
        fprintf(out, "%s\n\t.param .align %u .b8 %s_param_%u[%u]", i > 0 ? "," : "",
                kernel->parameters[i].alignment_bytes, name, i, kernel->parameters[i].size_bytes);
    }
    fprintf(out, "\n)\n");
    if (kernel->max_threads > 0) fprintf(out, ".maxntid %u, 1, 1\n", kernel->max_threads);
    fprintf(out, "{\n\tret;\n}\n\n");
}

/* The kernel that a name expression means: "ns::add<float>" is a template named add. */
static bool write_expression(FILE *out, const char *clean, const char *expression,
                             const char *lowered) {
    const char *open = strchr(expression, '<');
    size_t length = open != NULL ? (size_t)(open - expression) : strlen(expression);
    char *arguments = NULL;
    if (open != NULL) {
        const char *close = strrchr(open, '>');
        if (close == NULL) return false;
        arguments = strndup(open + 1, (size_t)(close - open) - 1);
        if (arguments == NULL) return false;
    }
    while (length > 0 && isspace((unsigned char)expression[length - 1])) length--;
    bool written = false;
    struct us_source_kernel kernel;
    for (const char *at = clean; !written && us_source_kernel(clean, &at, arguments, &kernel);) {
        size_t name = strlen(kernel.name);
        if (name > length || memcmp(expression + length - name, kernel.name, name) != 0) continue;
        if (name < length && strchr(":& ", expression[length - name - 1]) == NULL) continue;
        write_entry(out, lowered, &kernel);
        written = true;
    }
    free(arguments);
    return written;
}

/* "--gpu-architecture=sm_90a" and its short forms. */
static const char *target_of(int count, const char *const *options) {
    for (int i = 0; i < count; i++) {
        const char *found = options != NULL && options[i] != NULL ? strstr(options[i], "sm_") : NULL;
        if (found == NULL && options != NULL && options[i] != NULL) {
            found = strstr(options[i], "compute_");
            if (found != NULL) return found + strlen("compute_");
        } else if (found != NULL) {
            return found + strlen("sm_");
        }
    }
    return "90";
}

US_EXPORT nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int option_count,
                                          const char *const *options) {
    if (program == NULL) return NVRTC_ERROR_INVALID_PROGRAM;
    char *clean = us_source_clean(program->source), *text = NULL;
    size_t bytes = 0;
    FILE *out = clean != NULL ? open_memstream(&text, &bytes) : NULL;
    if (out == NULL) {
        free(clean);
        return NVRTC_ERROR_OUT_OF_MEMORY;
    }
    fprintf(out, "// The kernels of a program under Understudy: declarations without code.\n"
                 ".version 9.0\n.target sm_%.5s\n.address_size 64\n\n",
            target_of(option_count, options));
    struct us_source_kernel kernel;
    for (const char *at = clean; us_source_kernel(clean, &at, NULL, &kernel);) {
        if (!kernel.is_template) write_entry(out, kernel.name, &kernel);
    }
    nvrtcResult result = NVRTC_SUCCESS;
    program->log[0] = '\0';
    for (size_t i = 0; i < program->expression_count && result == NVRTC_SUCCESS; i++) {
        if (strchr(program->expressions[i], '<') == NULL &&
            strcmp(program->expressions[i], program->lowered[i]) == 0) {
            continue; /* a plain kernel, written above */
        }
        if (!write_expression(out, clean, program->expressions[i], program->lowered[i])) {
            snprintf(program->log, sizeof program->log, "Understudy: no kernel is named %s",
                     program->expressions[i]);
            result = NVRTC_ERROR_COMPILATION;
        }
    }
    free(clean);
    if (fclose(out) != 0) result = NVRTC_ERROR_OUT_OF_MEMORY;
    if (result != NVRTC_SUCCESS) {
        free(text);
        return result;
    }
    free(program->ptx);
    program->ptx = text;
    return NVRTC_SUCCESS;
}

/* Results ------------------------------------------------------------------------------------ */

static nvrtcResult text_size(nvrtcProgram program, size_t *bytes) {
    if (program == NULL || program->ptx == NULL) return NVRTC_ERROR_INVALID_PROGRAM;
    if (bytes == NULL) return NVRTC_ERROR_INVALID_INPUT;
    *bytes = strlen(program->ptx) + 1;
    return NVRTC_SUCCESS;
}

static nvrtcResult copy_text(nvrtcProgram program, char *text) {
    if (program == NULL || program->ptx == NULL) return NVRTC_ERROR_INVALID_PROGRAM;
    if (text == NULL) return NVRTC_ERROR_INVALID_INPUT;
    memcpy(text, program->ptx, strlen(program->ptx) + 1);
    return NVRTC_SUCCESS;
}

US_EXPORT nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t *bytes) {
    return text_size(program, bytes);
}

US_EXPORT nvrtcResult nvrtcGetPTX(nvrtcProgram program, char *ptx) {
    return copy_text(program, ptx);
}

US_EXPORT nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *bytes) {
    return text_size(program, bytes);
}

US_EXPORT nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *cubin) {
    return copy_text(program, cubin);
}

US_EXPORT nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *bytes) {
    if (program == NULL) return NVRTC_ERROR_INVALID_PROGRAM;
    if (bytes == NULL) return NVRTC_ERROR_INVALID_INPUT;
    *bytes = strlen(program->log) + 1;
    return NVRTC_SUCCESS;
}

US_EXPORT nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *log) {
    if (program == NULL) return NVRTC_ERROR_INVALID_PROGRAM;
    if (log == NULL) return NVRTC_ERROR_INVALID_INPUT;
    strcpy(log, program->log);
    return NVRTC_SUCCESS;
}
