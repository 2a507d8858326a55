package module

// What a guest may have at the most. A shipped guest has a tenth of it at the most, save
// for nested blocks and the size of a body, of which Go's compiler makes many and large.
// Compilers take long over what is larger: 70 KB of locals and blocks took 125 s.
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
	// maxMetered is how much code a metered module may have, in bytes: what grows memory
	// without end becomes 18 times as long, and loops that change many locals and do nothing
	// else 200 times.
	maxMetered = 48 << 20
	maxNesting = 16_384
	// maxTargets is how many targets a br_table may have.
	maxTargets = 65_536
	// maxPages is how much memory a guest may want at the start: 256 MiB. How much it gets
	// is its limits'.
	maxPages = 4096
)
