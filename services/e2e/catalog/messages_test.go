package catalog_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// variableText lists patterns for the parts of the output that differ between runs, and the replacement for each.
var variableText = []struct {
	what *regexp.Regexp
	name string
}{
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "SHA-256"},
	{regexp.MustCompile(`\b[0-9a-f]{16}\b`), "DIGEST"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`), "TIME"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "ADDRESS"},
	{regexp.MustCompile(`(/[A-Za-z0-9._-]+)+/(sluice\.yaml|pages)\b`), "$2"},
}

// update makes the test rewrite its golden file.
var update = flag.Bool("update", false, "write the golden files of testdata")

// transcript runs the commands of testdata/catalog.txt and records their output.
type transcript struct {
	*rawmesh.Mesh
	t     *testing.T
	p     *stack.Process
	token string
}

// The test compares every message of `sluice catalog` with testdata/catalog.txt. With the flag -update, the test writes
// that file.
func TestCatalogCLI_MessagesMatchTheGoldenFile(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, libraryTools())
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: classPolicy, GRPC: stack.FreeAddr(t), Extra: "approvals: {hold: 0s}",
	}))
	run := &transcript{Mesh: &rawmesh.Mesh{Stack: p.Stack, Upstream: up}, t: t, p: p, token: stack.OperatorToken}
	run.listTools()
	file := filepath.Join("testdata", "catalog.txt")
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	head, _, _ := strings.Cut(string(want), "\n$ ")
	got.WriteString(head + "\n")
	for line := range strings.Lines(string(want)) {
		switch {
		case strings.HasPrefix(line, "$ "):
			got.WriteString(line + run.runLine(strings.TrimSpace(line[2:])) + "\n")
		case strings.HasPrefix(line, "! "):
			got.WriteString(line + "\n")
			run.applyEvent(strings.TrimSpace(line[2:]))
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")); diff != "" {
		t.Errorf("the messages differ (-want +got; -update writes them):\n%s", diff)
	}
}

// listTools lists the server's tools in a session, so that the tools are in the catalog.
func (r *transcript) listTools() {
	r.t.Helper()
	resp := r.Connect(r.t).Post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	if len(resp.Body) == 0 {
		r.t.Fatal("nothing is listed")
	}
}

func (r *transcript) applyEvent(what string) {
	r.t.Helper()
	switch what {
	case "the server lists other tools":
		changed := strings.Replace(libraryTools(toolDefinition("purge", "Purges everything.")), `"Gets a note.","inputSchema":{"type":"object"}`, `"Gets a note.","inputSchema":{"type":"object","required":["why"]}`, 1)
		r.Upstream.SetTools(changed)
		eventually.Within(r.t, 30*time.Second, "the gateway lists the server itself", func() bool {
			r.listTools()
			return strings.Contains(r.runLine("catalog list --waiting"), "changed, waits")
		})
	case "a viewer asks":
		r.token = stack.ViewerToken
	case "nobody knows who asks":
		r.token = "none"
	case "policy is gone":
		r.token = stack.OperatorToken
		r.p.Kill()
	default:
		r.t.Fatalf("unknown event %q", what)
	}
}

func (r *transcript) runCommand(args ...string) stack.CommandResult {
	r.t.Helper()
	return stack.Run(r.t, stack.Command{
		Args: append([]string{args[0], "--config", r.p.Config}, args[1:]...), Dir: r.p.Dir, Env: []string{"SLUICE_TOKEN=" + r.token},
	})
}

// commandWords matches the arguments of a command line. An argument in quotes may contain spaces.
var commandWords = regexp.MustCompile(`"[^"]*"|\S+`)

var digestArgument = regexp.MustCompile(`DIGEST\((\w*)\)`)

// runLine runs one command line and returns its output. It replaces the values that differ between runs.
func (r *transcript) runLine(line string) string {
	r.t.Helper()
	var args []string
	for _, word := range commandWords.FindAllString(line, -1) {
		if of := digestArgument.FindStringSubmatch(word); of != nil {
			word = r.waitingDigest(of[1])
		}
		args = append(args, strings.Trim(word, `"`))
	}
	ran := r.runCommand(args...)
	said := ran.Stdout + ran.Stderr
	for _, d := range variableText {
		said = d.what.ReplaceAllString(said, d.name)
	}
	return fmt.Sprintf("%s[%d]\n", said, ran.Code)
}

// waitingDigest returns the digest of a tool definition that waits for an operator to accept it. If tool is empty, it
// returns one digest of all definitions of the server that wait for an operator.
func (r *transcript) waitingDigest(tool string) string {
	r.t.Helper()
	if tool == "" {
		var all struct {
			Servers []struct {
				WaitingDigest string `json:"waitingDigest"`
			} `json:"servers"`
		}
		ran := r.runCommand("catalog", "servers", "-o", "json")
		if err := json.Unmarshal([]byte(ran.Stdout), &all); err != nil || len(all.Servers) != 1 {
			r.t.Fatalf("%+v", ran)
		}
		return all.Servers[0].WaitingDigest
	}
	var diff struct {
		Waiting []struct {
			Digest string `json:"digest"`
		} `json:"waiting"`
	}
	ran := r.runCommand("catalog", "diff", "raw", tool, "-o", "json")
	if err := json.Unmarshal([]byte(ran.Stdout), &diff); err != nil || len(diff.Waiting) != 1 {
		r.t.Fatalf("%+v", ran)
	}
	return diff.Waiting[0].Digest
}
