package agents_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// The client requests the parts of an export with wasm_agent_archive_part. The rate limit must count them as one
// export. If the client requests a part with wasm_agent_export instead, it counts as another export.
func TestAgentsExport_CountsOnceWithAllItsParts(t *testing.T) {
	t.Parallel()
	s := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: "  agents: {grpc: {target: wasmagent}}",
		Policy: "version: 1\nname: p\ndefault: allow\ntools:\n  wasm_agent_export: {rate_limit: {max: 2, window: 1h}}\n" +
			"  wasm_agent_archive_part: {rate_limit: {max: 630, window: 60}}\n",
	}))
	c := stack.Connect(t, s.MCP("agents"), stack.AgentToken)
	id := textBetween(t, c.Call("wasm_agent_create", `{}`).Text(t), `"id":"`, `"`)
	for i := range 3 {
		content := strings.Repeat(fmt.Sprint(i, "23456789"), 100_000)
		if resp := c.Call("wasm_agent_tool", fmt.Sprintf(`{"agentId":%q,"toolName":"write_file","toolInput":{"path":"%d","content":"%s"}}`, id, i, content)); resp.IsError(t) {
			t.Fatalf("%.300s", resp.Body)
		}
	}
	type part struct {
		Archive struct {
			Digest     string `json:"digest"`
			NextOffset int    `json:"nextOffset"`
			Data       []byte `json:"dataBase64"`
		} `json:"archive"`
	}
	get := func(tool, arguments string) (out part) {
		t.Helper()
		resp := c.Call(tool, arguments)
		if resp.IsError(t) {
			t.Fatalf("%s %s: %.300s", tool, arguments, resp.Body)
		}
		if err := json.Unmarshal([]byte(resp.Text(t)), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	first := get("wasm_agent_export", fmt.Sprintf(`{"agentId":%q,"depth":"full"}`, id))
	text, parts := first.Archive.Data, 1
	for next := first.Archive.NextOffset; next != 0; parts++ {
		more := get("wasm_agent_archive_part", fmt.Sprintf(`{"agentId":%q,"archiveDigest":%q,"offset":%d}`, id, first.Archive.Digest, next))
		text, next = append(text, more.Archive.Data...), more.Archive.NextOffset
	}
	if sum := sha256.Sum256(text); parts < 3 || hex.EncodeToString(sum[:]) != first.Archive.Digest {
		t.Errorf("%d parts do not add up to the archive", parts)
	}
	as := fmt.Sprintf(`{"agentId":%q,"depth":"full","archiveDigest":%q,"offset":1}`, id, first.Archive.Digest)
	get("wasm_agent_export", as)
	for what, arguments := range map[string]string{"a part": as, "another export": fmt.Sprintf(`{"agentId":%q}`, id)} {
		if code := c.Call("wasm_agent_export", arguments).Decision(t).Code; code != "rate_limited" {
			t.Errorf("%s as a third export has the code %q", what, code)
		}
	}
}
