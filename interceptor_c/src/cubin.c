/*
 * Reads an uncompressed cubin (an ELF file; Triton loads such) for what launches need: parameter
 * layout, registers, shared memory. The format is not documented by NVIDIA; the offsets are those
 * of understudy/traces/cubin.py. An image in memory comes without a length; then its headers have to
 * be believed.
 */
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "core.h"

#define MAX_KERNELS 4096

enum {
    FORMAT_SIZED = 4, /* a u16 size and that many bytes follow */
    ATTRIBUTE_MAX_THREADS = 0x05,
    ATTRIBUTE_PARAMETER = 0x17,
    ATTRIBUTE_PARAMETER_BYTES = 0x19,
    ATTRIBUTE_REGISTERS = 0x2f,
    ATTRIBUTE_PARAMETER_LARGE = 0x45,
};

struct kernel {
    char *name;
    struct us_kernel_info info;
    struct us_parameter *parameters;
};

struct us_cubin {
    size_t count;
    struct kernel kernels[];
};

struct image {
    const unsigned char *base;
    const Elf64_Shdr *sections;
    unsigned section_count;
    const char *names;
    uint64_t name_bytes;
};

static uint32_t u32(const unsigned char *at) {
    uint32_t value;
    memcpy(&value, at, 4);
    return value;
}

static uint16_t u16(const unsigned char *at) {
    uint16_t value;
    memcpy(&value, at, 2);
    return value;
}

static const char *section_name(const struct image *image, const Elf64_Shdr *section) {
    if (section->sh_name >= image->name_bytes)
        return "";
    const char *name = image->names + section->sh_name;
    return memchr(name, 0, image->name_bytes - section->sh_name) ? name : "";
}

static bool open_image(struct image *image, const void *data, size_t bytes) {
    const Elf64_Ehdr *header = data;
    if (bytes < sizeof *header || strncmp(data, ELFMAG, SELFMAG) ||
        header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_shentsize != sizeof(Elf64_Shdr) ||
        header->e_shstrndx >= header->e_shnum || header->e_shoff % 8 || header->e_shoff > bytes ||
        (bytes - header->e_shoff) / sizeof(Elf64_Shdr) < header->e_shnum)
        return false;
    image->base = data;
    image->section_count = header->e_shnum;
    image->sections = (const void *)(image->base + header->e_shoff);
    for (unsigned i = 0; i < image->section_count; i++) {
        const Elf64_Shdr *section = &image->sections[i];
        uint64_t size = section->sh_type == SHT_NOBITS ? 0 : section->sh_size;
        if (section->sh_offset > bytes || size > bytes - section->sh_offset)
            return false;
    }
    const Elf64_Shdr *names = &image->sections[header->e_shstrndx];
    image->names = (const char *)image->base + names->sh_offset;
    image->name_bytes = names->sh_type == SHT_NOBITS ? 0 : names->sh_size;
    return true;
}

/* Calls back for every sized attribute of a .nv.info section. */
typedef void on_attribute(void *state, unsigned attribute, const unsigned char *value,
                          unsigned bytes);

static void read_attributes(const struct image *image, const Elf64_Shdr *section,
                            on_attribute *callback, void *state) {
    if (section->sh_type == SHT_NOBITS)
        return;
    const unsigned char *at = image->base + section->sh_offset, *end = at + section->sh_size;
    while (end - at >= 4) {
        unsigned format = at[0], attribute = at[1], bytes = u16(at + 2);
        at += 4;
        if (format != FORMAT_SIZED)
            continue;
        if (bytes > (uint64_t)(end - at))
            return;
        callback(state, attribute, at, bytes);
        at += bytes;
    }
}

static void set_parameter(struct kernel *kernel, unsigned ordinal, uint32_t offset, uint32_t size) {
    if (ordinal >= 4096)
        return;
    if (ordinal >= kernel->info.parameter_count) {
        struct us_parameter *grown =
            realloc(kernel->parameters, (ordinal + 1) * sizeof *kernel->parameters);
        if (!grown)
            return;
        memset(grown + kernel->info.parameter_count, 0,
               (ordinal + 1 - kernel->info.parameter_count) * sizeof *grown);
        kernel->parameters = grown;
        kernel->info.parameter_count = ordinal + 1;
    }
    kernel->parameters[ordinal] = (struct us_parameter){offset, size};
}

static void on_kernel_attribute(void *state, unsigned attribute, const unsigned char *value,
                                unsigned bytes) {
    struct kernel *kernel = state;
    if (attribute == ATTRIBUTE_PARAMETER && bytes >= 12)
        set_parameter(kernel, u16(value + 4), u16(value + 6), u32(value + 8) >> 18);
    else if (attribute == ATTRIBUTE_PARAMETER_LARGE && bytes >= 10)
        set_parameter(kernel, u16(value + 4), u16(value + 6), u16(value + 8));
    else if (attribute == ATTRIBUTE_MAX_THREADS && bytes >= 12)
        kernel->info.max_threads = u32(value) * u32(value + 4) * u32(value + 8);
    else if (attribute == ATTRIBUTE_PARAMETER_BYTES && bytes >= 4)
        kernel->info.parameter_bytes = u32(value);
}

struct register_state {
    const struct image *image;
    struct us_cubin *cubin;
    const Elf64_Shdr *symbols;
};

/* {symbol index, registers}: the symbol's section is the kernel's .text.<name>. */
static void on_register_attribute(void *state, unsigned attribute, const unsigned char *value,
                                  unsigned bytes) {
    struct register_state *s = state;
    if (attribute != ATTRIBUTE_REGISTERS || bytes < 8)
        return;
    uint64_t index = u32(value);
    if (index >= s->symbols->sh_size / sizeof(Elf64_Sym))
        return;
    Elf64_Sym symbol;
    memcpy(&symbol, s->image->base + s->symbols->sh_offset + index * sizeof symbol, sizeof symbol);
    if (symbol.st_shndx >= s->image->section_count)
        return;
    const char *text = section_name(s->image, &s->image->sections[symbol.st_shndx]);
    for (size_t i = 0; i < s->cubin->count && !strncmp(text, ".text.", 6); i++)
        if (!strcmp(s->cubin->kernels[i].name, text + 6))
            s->cubin->kernels[i].info.registers = u32(value + 4);
}

struct us_cubin *us_cubin_parse(const void *data, size_t bytes) {
    static const char prefix[] = ".nv.info.";
    struct image image;
    if (!open_image(&image, data, bytes))
        return NULL;
    size_t count = 0;
    for (unsigned i = 0; i < image.section_count; i++)
        count += !strncmp(section_name(&image, &image.sections[i]), prefix, sizeof prefix - 1);
    if (!count || count > MAX_KERNELS)
        return NULL;
    struct us_cubin *cubin = calloc(1, sizeof *cubin + count * sizeof cubin->kernels[0]);
    if (!cubin)
        return NULL;
    struct register_state registers = {&image, cubin, NULL};
    for (unsigned i = 0; i < image.section_count; i++) {
        const Elf64_Shdr *section = &image.sections[i];
        const char *name = section_name(&image, section);
        if (section->sh_type == SHT_SYMTAB)
            registers.symbols = section;
        if (strncmp(name, prefix, sizeof prefix - 1))
            continue;
        struct kernel *kernel = &cubin->kernels[cubin->count++];
        kernel->name = strdup(name + sizeof prefix - 1);
        if (!kernel->name) {
            us_cubin_free(cubin);
            return NULL;
        }
        read_attributes(&image, section, on_kernel_attribute, kernel);
    }
    for (unsigned i = 0; i < image.section_count; i++) {
        const Elf64_Shdr *section = &image.sections[i];
        const char *name = section_name(&image, section);
        if (!strcmp(name, ".nv.info") && registers.symbols)
            read_attributes(&image, section, on_register_attribute, &registers);
        for (size_t k = 0; k < cubin->count && !strncmp(name, ".nv.shared.", 11); k++)
            if (!strcmp(cubin->kernels[k].name, name + 11))
                cubin->kernels[k].info.static_shared_bytes = (uint32_t)section->sh_size;
    }
    return cubin;
}

size_t us_cubin_count(const struct us_cubin *cubin) {
    return cubin->count;
}

const char *us_cubin_kernel(const struct us_cubin *cubin, size_t index,
                            struct us_kernel_info *info) {
    const struct kernel *kernel = &cubin->kernels[index];
    *info = kernel->info;
    info->parameters = kernel->parameters;
    return kernel->name;
}

void us_cubin_free(struct us_cubin *cubin) {
    for (size_t i = 0; i < cubin->count; i++) {
        free(cubin->kernels[i].name);
        free(cubin->kernels[i].parameters);
    }
    free(cubin);
}
