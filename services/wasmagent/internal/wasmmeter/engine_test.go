package wasmmeter_test

import (
	"context"
	"errors"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/wasmmeter"
)

const features = api.CoreFeaturesV2 &^ api.CoreFeatureReferenceTypes

var (
	errSpent = errors.New("the fuel is spent")
	errStack = errors.New("the stack is spent")
)

type engine struct {
	wazero.Runtime
	// The field each is the fuel that one refill grants. The field most is the maximum total fuel of all refills. The
	// field granted is the fuel that has been granted so far.
	each, most, granted int64
}

func newEngine(t testing.TB, cfg wazero.RuntimeConfig) *engine {
	t.Helper()
	e := &engine{Runtime: wazero.NewRuntimeWithConfig(t.Context(), cfg.WithCoreFeatures(features)), each: 1000, most: 1 << 40}
	t.Cleanup(func() {
		if err := e.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	_, err := e.NewHostModuleBuilder(wasmmeter.RefillModule).NewFunctionBuilder().
		WithGoFunction(api.GoFunc(func(_ context.Context, stack []uint64) {
			remaining := int64(stack[0])
			if remaining == wasmmeter.StackSpent {
				panic(errStack)
			}
			give := min(max(e.each, -remaining), e.most-e.granted)
			if e.granted += give; remaining+give < 0 {
				panic(errSpent)
			}
			stack[0] = uint64(remaining + give)
		}), []api.ValueType{api.ValueTypeI64}, []api.ValueType{api.ValueTypeI64}).
		Export(wasmmeter.RefillName).Instantiate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// meterAt returns the metered form of a module. minSeparate replaces the constant minSeparateCharge.
func meterAt(t testing.TB, text []byte, minSeparate int64) []byte {
	t.Helper()
	m, err := wasmmeter.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	out, err := m.MeteredAt(minSeparate)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func callFunction(ctx context.Context, in api.Module, f api.Function, args ...uint64) ([]uint64, error) {
	return f.Call(ctx, args...)
}

// used returns the fuel that an instance has used. The instance must be the only instance in the engine.
func (e *engine) used(in api.Module) int64 {
	return e.granted - int64(in.ExportedGlobal(wasmmeter.FuelGlobal).Get())
}
