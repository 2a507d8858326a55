package agents_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/npm"
	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// compileGuest compiles the AssemblyScript example guest as its README describes. It returns the path of the module and
// its SHA-256 digest in hexadecimal.
func compileGuest(t *testing.T) (path, digest string) {
	t.Helper()
	asc := npmtest.Install(t, npm.AssemblyScript)
	path = filepath.Join(t.TempDir(), "guest.wasm")
	source, err := filepath.Abs("../../../examples/guest-assemblyscript/guest.ts")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), npmtest.Node(t), asc.Module("assemblyscript/bin/asc.js"),
		filepath.Base(source), "--outFile", path, "--optimize", "--use", "abort=", "--exportStart", "_initialize")
	cmd.Dir = filepath.Dir(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	return path, hex.EncodeToString(sum[:])
}

// Case W12. A guest that is written in another language runs if the configuration lists it with its digest. The mesh
// does not start if the digest is wrong.
func TestGuest_InAnotherLanguageRunsWithItsDigest(t *testing.T) {
	t.Parallel()
	path, digest := compileGuest(t)
	options := func(digest string) stack.Options {
		return stack.Options{
			Servers: "  agents: {grpc: {target: wasmagent}}", Policy: "version: 1\nname: all\ndefault: allow\n",
			Extra: fmt.Sprintf("agents: {guests: {words: {module: %q, sha256: %q}}}", path, digest),
		}
	}
	s := stack.Start(t, stack.WriteConfig(t, options(digest)))
	c := stack.Connect(t, s.MCP("agents"), stack.AgentToken)
	id := textBetween(t, c.Call("wasm_agent_create", `{"guest":"words"}`).Text(t), `"id":"`, `"`)
	said := c.Call("wasm_agent_prompt", fmt.Sprintf(`{"agentId":%q,"input":"how many \"words\" are\nthese"}`, id)).Text(t)
	if !strings.Contains(said, `"response":"5 words"`) {
		t.Errorf("the agent answers %s", said)
	}
	if file := c.Call("wasm_agent_tool", fmt.Sprintf(`{"agentId":%q,"toolName":"read_file","toolInput":{"path":"words.txt"}}`, id)).Text(t); !strings.Contains(file, `"output":"5"`) {
		t.Errorf("the file of the agent is %s", file)
	}
	other := stack.WriteConfig(t, options(strings.Repeat("0", 64)))
	ran := stack.Run(t, stack.Command{Args: []string{"up", "--config", other.Config}})
	if ran.Code == 0 || !strings.Contains(ran.Stderr, "agents.guests.words") || !strings.Contains(ran.Stderr, digest) {
		t.Errorf("with another digest the result is %+v", ran)
	}
}
