package wasmmeter

// These limits on a guest's module limit the time and the memory for compiling the module. Without them, compiling a
// module with 70 KB of locals and blocks took 125 s. The shipped guests reach at most a tenth of each limit. The
// exceptions are nested blocks and the size of a body, because Go's compiler creates large functions with many blocks.
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
	// maxMetered limits the size of a metered module's code, in bytes. Metering can make code much longer. Code that
	// only grows memory can become up to 18 times as long. Loops that only change many locals can become up to 200
	// times as long.
	maxMetered = 48 << 20
	maxNesting = 16_384
	maxTargets = 65_536
	// maxPages limits the initial memory of a guest, in pages. It is equal to 256 MiB. The limit of an instance may be
	// lower.
	maxPages = 4096
)
