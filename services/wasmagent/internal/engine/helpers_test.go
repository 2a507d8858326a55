package engine_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/sluice-mesh/sluice/services/wasmagent/internal/engine"
)

const (
	// plentyFuel is enough fuel for every step that is expected to end.
	plentyFuel = 2_000_000_000
	mib        = 1 << 20
)

var limits = engine.Limits{Memory: 64 * mib, Envelope: 1 * mib}

func newEngine(t testing.TB) *engine.Engine {
	t.Helper()
	e, err := engine.New(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return e
}

func compileModule(t testing.TB, text []byte) *engine.Program {
	t.Helper()
	p, err := newEngine(t).Compile(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func startInstance(t testing.TB, p *engine.Program) *engine.Instance {
	t.Helper()
	in, _, err := p.Start(t.Context(), limits, engine.Origin{Clock: 1_700_000_000_000_000_000}, plentyFuel)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(context.WithoutCancel(t.Context())) })
	return in
}

type envelope map[string]any

func (e envelope) text() []byte {
	text, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	return text
}

func step(t testing.TB, in *engine.Instance, e envelope) (envelope, int64) {
	t.Helper()
	text, fuel, err := in.Step(t.Context(), e.text(), plentyFuel)
	if err != nil {
		t.Fatalf("%v: %v\n%s", e, err, in.Printed())
	}
	var out envelope
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return out, fuel
}
