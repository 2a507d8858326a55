// Package engine runs guests. A guest is a WebAssembly module that receives an envelope, computes, and returns an
// envelope. A guest has no access to files, real clocks or the network. For the same envelopes, it always returns the
// same answers and uses the same fuel. Between two envelopes, the state of a guest consists of its memory and its
// globals. This state can be stored and then restored in another process. Package worker uses this package.
package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/wasmmeter"
)

// ABIVersion is the version of the interface between a guest and its host.
const ABIVersion = 1

// These are the names of the functions and the memory that a guest exports. The trailing comments show their types.
const (
	exportMemory  = "memory"
	exportVersion = "abi_version" // () -> i32
	exportAlloc   = "alloc"       // (i32 bytes) -> i32 address
	exportStep    = "step"        // (i32 address, i32 bytes) -> i64 address<<32 | bytes
	exportInit    = "_initialize" // () -> (), optional; called before the others
	exportCommand = "_start"      // exported only by commands
)

// buildModes is the advice in the error message about a module that is a WebAssembly command.
const buildModes = "Build it as a reactor (library): with Go by -buildmode=c-shared and GOOS=wasip1 GOARCH=wasm, with TinyGo by -buildmode=c-shared and -target=wasip1, " +
	"with Rust by the crate type cdylib for wasm32-wasip1, with clang by -mexec-model=reactor"

// Steps return these errors. Compare them with [errors.Is]. After one of them, the instance can't be used any more.
var (
	// ErrFuel means that the guest has used all of its fuel.
	ErrFuel = errors.New("the guest has no fuel left")
	// ErrMemory means that the guest has requested more memory than its limit allows.
	ErrMemory = errors.New("the guest requested more memory than its limit")
	// ErrSystem means that the operating system has no memory left, although the guest has not reached its own limit.
	ErrSystem = errors.New("there is no memory left for guests")
	// ErrDeadline means that the step did not end before its deadline.
	ErrDeadline = errors.New("the guest took too long")
	// ErrTrap means that the guest has trapped or has violated the ABI.
	ErrTrap = errors.New("the guest trapped")
)

// features is WebAssembly 2.0 without reference types. With reference types, guests could store references in tables,
// which snapshots do not contain.
const features = api.CoreFeaturesV2 &^ api.CoreFeatureReferenceTypes

// An Engine compiles guests and runs them. It is safe for concurrent use.
type Engine struct {
	runtime wazero.Runtime
	cache   wazero.CompilationCache
	pool    sparePool
}

// New returns an engine. cache is the path of a directory for compiled modules, which New creates if needed. No other
// user may have write access to the directory, because its content is executed. If the path is empty, compiled modules
// are not cached. The caller must close the engine.
func New(ctx context.Context, cache string) (*Engine, error) {
	e := new(Engine)
	cfg := wazero.NewRuntimeConfigCompiler().WithCoreFeatures(features).WithDebugInfoEnabled(false)
	if cache != "" {
		if err := os.MkdirAll(cache, 0o700); err != nil {
			return nil, fmt.Errorf("create the folder of compiled guests: %w", err)
		}
		var err error
		if e.cache, err = wazero.NewCompilationCacheWithDir(cache); err != nil {
			return nil, fmt.Errorf("open the folder of compiled guests: %w", err)
		}
		cfg = cfg.WithCompilationCache(e.cache)
	}
	e.runtime = wazero.NewRuntimeWithConfig(ctx, cfg)
	if err := defineImports(ctx, e.runtime); err != nil {
		return nil, errors.Join(err, e.Close(ctx))
	}
	return e, nil
}

// Close ends all instances and releases their memory.
func (e *Engine) Close(ctx context.Context) error {
	err := e.runtime.Close(ctx)
	e.pool.close()
	if e.cache != nil {
		err = errors.Join(err, e.cache.Close(ctx))
	}
	return err
}

// A Program is the compiled module of a guest. It is safe for concurrent use.
type Program struct {
	// Digest is the SHA-256 of the original module, as 64 hexadecimal digits.
	Digest string

	engine   *Engine
	compiled wazero.CompiledModule
	// state contains the export names of the globals that belong to the guest's state. pages is the size of the initial
	// memory, in WebAssembly pages.
	state []string
	pages uint32
	// image is the initial memory. The first instance sets it.
	image image
	first sync.Once
}

// Compile parses a module, adds the fuel meter to it and compiles it. For a module from the Go compiler, this takes
// about a second. Compile continues even if ctx is done. It returns the errors of [wasmmeter.Parse], and
// [wasmmeter.ErrUnsupported] if the module is not a guest.
func (e *Engine) Compile(ctx context.Context, text []byte) (*Program, error) {
	m, err := wasmmeter.Parse(text)
	if err != nil {
		return nil, err
	}
	if err := checkGuest(m); err != nil {
		return nil, err
	}
	metered, err := m.Metered()
	if err != nil {
		return nil, err
	}
	compiled, err := e.runtime.CompileModule(ctx, metered)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", wasmmeter.ErrMalformed, err)
	}
	return &Program{Digest: m.Digest, engine: e, compiled: compiled, state: m.StateGlobals(), pages: m.Memory.Min}, nil
}

// Close releases the compiled module. Running instances can continue.
func (p *Program) Close(ctx context.Context) error { return p.compiled.Close(ctx) }

// signatures contains the types of the functions that a guest must export.
var signatures = map[string]wasmmeter.FuncType{
	exportVersion: {Results: []wasmmeter.ValueType{wasmmeter.I32}},
	exportAlloc:   {Params: []wasmmeter.ValueType{wasmmeter.I32}, Results: []wasmmeter.ValueType{wasmmeter.I32}},
	exportStep:    {Params: []wasmmeter.ValueType{wasmmeter.I32, wasmmeter.I32}, Results: []wasmmeter.ValueType{wasmmeter.I64}},
}

// checkGuest returns an error that wraps [wasmmeter.ErrUnsupported] if a module is not a guest.
func checkGuest(m *wasmmeter.Module) error {
	if m.Exported(exportCommand, wasmmeter.Func) {
		return fmt.Errorf("%w: a command, which exports %q and runs once. %s", wasmmeter.ErrUnsupported, exportCommand, buildModes)
	}
	if m.HasStart() {
		return fmt.Errorf("%w: a start function; use the export %s instead", wasmmeter.ErrUnsupported, exportInit)
	}
	for _, i := range m.Imports {
		want, ok := imports[i.Module+"."+i.Name]
		switch {
		case !ok:
			return fmt.Errorf("%w: the import %q of %q; guests get %s", wasmmeter.ErrUnsupported, i.Name, i.Module, strings.Join(importNames(), ", "))
		case !want.Equal(i.Type):
			return fmt.Errorf("%w: the import %q of %q with another signature", wasmmeter.ErrUnsupported, i.Name, i.Module)
		}
	}
	if m.Memory == nil || !m.Exported(exportMemory, wasmmeter.Memory) {
		return fmt.Errorf("%w: a guest that does not export its memory as %q", wasmmeter.ErrUnsupported, exportMemory)
	}
	for name, want := range signatures {
		got, ok := m.FuncExported(name)
		switch {
		case !ok:
			return fmt.Errorf("%w: a guest without the function %q (ABI %d)", wasmmeter.ErrUnsupported, name, ABIVersion)
		case !want.Equal(got):
			return fmt.Errorf("%w: the function %q with another signature (ABI %d)", wasmmeter.ErrUnsupported, name, ABIVersion)
		}
	}
	return nil
}
