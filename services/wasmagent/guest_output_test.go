package wasmagent_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/wasmagent"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/guesttest"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/modules"
)

// listedGuest writes a module to a directory, and returns the configuration entry for the module.
func listedGuest(t *testing.T, dir, name string, module []byte) modules.Listed {
	t.Helper()
	path := filepath.Join(dir, name+".wasm")
	if err := os.WriteFile(path, module, 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(module)
	return modules.Listed{Path: path, SHA256: hex.EncodeToString(sum[:])}
}

// newTestServiceOf returns a service that has the given guests in addition to the shipped guests. The service's gateway
// refuses all calls.
func newTestServiceOf(t *testing.T, extra map[string][]byte) testService {
	t.Helper()
	cfg := wasmagent.Config{Data: t.TempDir(), Guests: make(map[string]modules.Listed)}
	dir := t.TempDir()
	for name, module := range extra {
		cfg.Guests[name] = listedGuest(t, dir, name, module)
	}
	s := openServiceAt(t, cfg, fakeGateway{answer: func(_ context.Context, _ *gatewayv1.CallToolRequest) (*gatewayv1.ToolAnswer, error) {
		return nil, status.Error(codes.Unimplemented, "the gateway of this test refuses calls")
	}})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return testService{rpctest.Serve(t, authv1.Role_ROLE_WASMAGENT, s, rpctest.Options{})}
}

func (c client) output(id string) (out []string) {
	c.t.Helper()
	for _, e := range c.events(id) {
		if e.GetKind() == wasmagentv1.EventKind_EVENT_KIND_PRINTED {
			out = append(out, e.GetMessage())
		}
	}
	return out
}

func checkNoStack(t *testing.T, text string) {
	t.Helper()
	for _, part := range []string{"stack trace", "goroutine", ".go:", "recovered by", "0x"} {
		if strings.Contains(text, part) {
			t.Errorf("a caller reads %q in %q", part, text)
		}
	}
}

// The journal records the output of a guest, including the message of a panic, up to a maximum size. VerifyAgent still
// reports a match.
func TestJournal_RecordsOutputOfGuest(t *testing.T) {
	t.Parallel()
	c := newTestServiceOf(t, map[string][]byte{"loud": guesttest.Module(t, "./testdata/loud")}).onBehalfOfUser(t, "ana")
	id := c.create(&wasmagentv1.CreateAgentRequest{Guest: new("loud")})
	c.mustPrompt(id, "print hello \x01\u202e")
	if got := c.output(id); len(got) != 2 || got[0] != "started\n" || got[1] != "hello \x01\u202e\n" {
		t.Fatalf("the journal has %q", got)
	}
	c.mustPrompt(id, "many 10000")
	got := c.output(id)
	if last := got[len(got)-1]; len(last) > 4096 || !strings.HasPrefix(last, "… ") || !strings.HasSuffix(last, "line 9999\n") {
		t.Errorf("of 10,000 lines the journal has %d bytes: %.40q", len(last), last)
	}
	c.mustPrompt(id, "steps 200")
	bytes := 0
	for _, text := range c.output(id)[len(got):] {
		bytes += len(text)
	}
	if bytes < 60_000 || bytes > 64<<10+200 {
		t.Errorf("of 200 steps with 1,000 bytes each the journal has %d bytes", bytes)
	}
	c.verifyMatches(id)

	_, _, err := c.prompt(id, "panic at the disco")
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "AGENT_FAILED")
	checkNoStack(t, err.Error())
	checkNoStack(t, c.state(id).GetInfo().GetFailure().GetMessage())
	all := c.output(id)
	if last := all[len(all)-1]; !strings.HasPrefix(last, "before the panic\npanic: at the disco") || len(last) > 4096 {
		t.Errorf("of the panic the journal has %q", last)
	}
	c.verifyMatches(id)
}

// If a module is a WebAssembly command, an agent can't be created from it, even if the module exports the functions of
// a guest. The error names the build modes to use.
func TestCreateAgent_RefusesCommandWithBuildMode(t *testing.T) {
	t.Parallel()
	hand := guesttest.HandMade{More: []guesttest.Code{{0x20, 0}, {0x20, 0}}}
	onlyStart, both := hand, hand
	onlyStart.Names, both.Names = []string{"_start"}, []string{"_start", "_initialize"}
	c := newTestServiceOf(t, map[string][]byte{
		"command": guesttest.Command(t, guesttest.Guests+"echo"), "start": onlyStart.Module(), "both": both.Module(),
	}).onBehalfOfUser(t, "ana")
	for _, guest := range []string{"command", "start", "both"} {
		_, err := c.CreateAgent(c.ctx, &wasmagentv1.CreateAgentRequest{Guest: &guest})
		rpctest.WantStatus(t, err, codes.FailedPrecondition, "GUEST_INVALID")
		if text := status.Convert(err).Message(); !strings.Contains(text, "-buildmode=c-shared") || !strings.Contains(text, "reactor") {
			t.Errorf("%s is refused with %q", guest, text)
		} else {
			checkNoStack(t, text)
		}
	}
}

// If a guest traps, neither the error nor the events contain a stack trace.
func TestPrompt_ErrorHasNoStackTraceAfterTrap(t *testing.T) {
	t.Parallel()
	exit := guesttest.HandMade{Step: guesttest.Concat(guesttest.I32(7), guesttest.Code{0x10, 0}, guesttest.Answer(0, 0)), Imports: guesttest.Import("proc_exit", 4)}
	modules := map[string][]byte{
		"unreachable": guesttest.HandMade{Step: guesttest.Code{0x00}}.Module(),
		"bounds":      guesttest.HandMade{Step: guesttest.Concat(guesttest.I32(-4), guesttest.Code{0x29, 3, 0})}.Module(),
		"exit":        exit.Module(),
	}
	c := newTestServiceOf(t, modules).onBehalfOfUser(t, "ana")
	for guest, says := range map[string]string{"unreachable": "unreachable", "bounds": "out of bounds", "exit": "exited with 7"} {
		id := c.create(&wasmagentv1.CreateAgentRequest{Guest: &guest})
		_, _, err := c.prompt(id, "x")
		rpctest.WantStatus(t, err, codes.FailedPrecondition, "AGENT_FAILED")
		failure := c.state(id).GetInfo().GetFailure().GetMessage()
		for _, text := range []string{err.Error(), failure} {
			checkNoStack(t, text)
			if !strings.Contains(text, says) {
				t.Errorf("%s: a caller reads %q, want %q", guest, text, says)
			}
		}
		for _, e := range c.events(id) {
			checkNoStack(t, e.GetMessage())
		}
	}
}
