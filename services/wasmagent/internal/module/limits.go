package module

// Bounds of a guest's module. A shipped guest has at most a tenth of each, except for nested blocks and the size of a
// body, of which Go's compiler makes many and large ones. Compilers need long for larger modules: 70 KB of locals and
// blocks took 125 s.
const (
	maxSize      = 16 << 20
	maxTypes     = 4096
	maxParams    = 64
	maxImports   = 64
	maxFunctions = 65_536
	maxTables    = 1
	maxTable     = 1 << 20
	maxGlobals   = 1024
	maxExports   = 1024
	maxElements  = 65_536
	maxData      = 65_536
	maxBody      = 1 << 20
	maxLocals    = 8192
	// maxMetered bounds the code of a metered module, in bytes. Code that only grows memory becomes 18 times as long,
	// and loops that change many locals and do nothing else 200 times.
	maxMetered = 48 << 20
	maxNesting = 16_384
	// maxTargets bounds the targets of a br_table.
	maxTargets = 65_536
	// maxPages bounds the initial memory of a guest: 256 MiB. The limits of an instance may be lower.
	maxPages = 4096
)
