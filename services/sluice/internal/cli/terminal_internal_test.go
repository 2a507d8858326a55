package cli

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
)

// hostile is an untrusted string with control characters. It clears the screen with ESC and again with the
// one-character form of ESC [, returns to the beginning of a line, reverses the text direction, and begins another line
// with each kind of line break.
const hostile = "x\x1b[2J\u009b2J\a\rFORGED\u202e\u2066\u2028FORGED\u0085FORGED\nFORGED"

var hostileDigest = hex.EncodeToString([]byte(hostile))[:16]

const approvalID = "0198b2c4-5d6e-7f80-9a1b-2c3d4e5f6071"

// Cases X7, S2. A mesh responds with hostile strings. Before a command prints such a string to the terminal, it escapes
// the control characters in both output formats. A hostile string can't begin another line of the output.
func TestCommands_EscapeHostileTexts(t *testing.T) {
	t.Parallel()
	calls := hostileCalls()
	// The list named contains the commands that print the position of a problem in a file, but not the content at that
	// position.
	named := []string{"config check", "policy import", "policy lint", "policy test", "journal verify"}
	// The list own contains the commands that print no untrusted strings, or, like stdio, print output for a program.
	// The command `init`, which reads files in HOME, is tested by package e2e/personal. The command `logout` needs a
	// stored session, which all other commands would use.
	own := []string{"certs", "completion", "demo-server", "forward", "help", "hook install", "hook remove", "hook status", "init", "logout", "policy schema", "service install", "service remove", "service status", "setup", "start-mesh", "stdio", "token show", "up", "version"}
	for _, name := range leafCommands(newTool("sluice", io.Discard, io.Discard).root()) {
		if _, ok := calls[name]; !ok && !slices.Contains(own, name) {
			t.Errorf("this test does not run `%s`: add it to hostileCalls, or to own if it prints no untrusted text", name)
		}
	}
	dir := hostileMesh(t)
	for name, args := range calls {
		for _, output := range []string{"table", "json"} {
			for _, fails := range []string{"", "-fails"} {
				t.Run(name+" as "+output+fails, func(t *testing.T) {
					t.Parallel()
					line := commandLine(name, args, dir)
					at := []string{"--config", filepath.Join(dir, "sluice"+fails+".yaml"), "-o", output}
					if line[0] == "__complete" { // the last argument is the word to complete
						line = slices.Concat(line[:1], at, line[1:])
					} else {
						line = append(line, at...)
					}
					var out, errOut bytes.Buffer
					ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // watches don't end
					defer cancel()
					code := newTool("sluice", &out, &errOut).run(ctx, line)
					for _, printed := range []string{out.String(), errOut.String()} {
						if i := strings.IndexFunc(printed, func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }); i >= 0 {
							t.Errorf("%q reaches the terminal", printed[max(0, i-40):min(len(printed), i+20)])
						}
						if strings.Contains("\n"+printed, "\nFORGED") && name != "call" { // a result may have several lines
							t.Errorf("a hostile text begins a line in:\n%s", printed)
						}
					}
					if named := slices.Contains(named, name) || line[0] == "__complete"; !named && !strings.Contains(out.String()+errOut.String(), "FORGED") {
						t.Errorf("the command exited with %d and did not print the hostile text: %s%s", code, out.String(), errOut.String())
					}
				})
			}
		}
	}
}

// hostileCalls returns the commands that print responses of a mesh. It maps the name of each command to the arguments.
func hostileCalls() map[string][]string {
	return map[string][]string{
		"agents create": nil, "agents files": {"a"}, "agents list": {"--all"}, "agents prompt": {"a", "x"}, "agents reset": {"a"}, "agents resume": {"a"},
		"agents show": {"a"}, "agents stop": {"a"}, "agents terminate": {"a"}, "agents accept": {"a", "--digest", hostile}, "agents events": {"a"}, "agents export": {"a"}, "agents fork": {"a"}, "agents grant": {"a", "--reason", "x", "--tool", "a/b"},
		"agents import": {"policy.yaml"}, "agents migrate": {"a"}, "agents snapshot": {"a"}, "agents verify": {"a"},
		"approvals approve": {"-y", approvalID}, "approvals cancel": {"-y", approvalID}, "approvals deny": {"-y", "-m", "no", approvalID},
		"approvals list": {"--all"}, "approvals resolve": {"-y", "--done", "-m", "looked", approvalID}, "approvals show": {approvalID}, "approvals watch": nil,
		"call": {"raw", "tool"}, "config check": nil, "decisions show": {"x"}, "decisions tail": nil, "decisions tail --follow": nil, "report": nil,
		"catalog servers": nil, "catalog list": nil, "catalog show": {"raw", "tool"}, "catalog diff": {"raw", "tool"},
		"catalog accept": {"raw", "tool", "--digest", hostileDigest}, "catalog refuse": {"raw", "tool", "--digest", hostileDigest},
		"catalog override": {"raw", "tool", "--risk", "low", "--reason", "x"}, "catalog quarantine": {"raw", "--reason", "x"}, "catalog export": {"--format", "json"},
		"catalog classify": {"--server", hostile, "--file", "tools.json"}, "policy suggest": {"--server", "raw", "--file", "tools.json"}, "policy propose": {"--server", hostile},
		"policy explain": {"--server", "raw", "--tool", "tool"}, "policy access": {"--server", "raw"}, "policy lint": {"policy.yaml"}, "policy diff": {"policy.yaml"}, "policy replay": {"policy.yaml"}, "stop": {"--agent", "a", "-m", "x"}, "stop --list": nil, "stop --history": nil, "resume": {"--all"}, "policy test": {"policy.yaml"}, "policy test --live": {"policy.yaml"},
		"policy explain --draft": {"policy.yaml", "--server", "raw", "--tool", "tool"}, "policy import": {"--server", "raw", "--from", "operator-yaml", "policy.yaml"},
		"journal verify": {"journal"}, "status": nil, "doctor": nil, "tools": {"raw"},
		"policy apply": {"policy.yaml", "-y", "-m", "x"}, "policy rollback": {"00000000", "-y", "-m", "x"}, "policy revisions": nil, "policy revision": {"00000000"},
		"login": nil, "whoami": nil, "connect": {"a"}, "disconnect": {hostile}, "connections": nil, "identity explain": {"a"}, "identity issuers": nil, "identity block": {"a"}, "identity unblock": {hostile}, "identity blocks": nil, "token create": {"a"}, "token import": {"a"}, "token list": {"--all"}, "token revoke": {"a"}, "token rotate": {"a"},
		"__complete approvals show": {""}, "__complete decisions tail --server": {""}, "__complete call raw": {""}, "__complete agents show": {""}, "__complete token revoke": {""}, "__complete policy rollback": {""},
	}
}

// commandLine returns the command line that runs a command with a hostile mesh. The parameter dir is the directory of
// this mesh.
func commandLine(name string, args []string, dir string) []string {
	line := append(strings.Fields(name), args...)
	for i, arg := range line {
		if arg == "policy.yaml" || arg == "tools.json" || arg == "journal" && i == len(line)-1 {
			line[i] = filepath.Join(dir, arg)
		}
	}
	return line
}

func leafCommands(c *cobra.Command) []string {
	var out []string
	for _, sub := range c.Commands() {
		inner := leafCommands(sub)
		for _, name := range inner {
			out = append(out, sub.Name()+" "+name)
		}
		if inner == nil {
			out = append(out, sub.Name())
		}
	}
	return out
}

// hostileMesh starts two fake meshes that serve gRPC and MCP. In the responses of the first mesh, all strings are
// hostile. The second mesh responds with errors whose messages are hostile. hostileMesh returns a directory with two
// configurations: sluice.yaml for the first mesh, and sluice-fails.yaml for the second mesh.
func hostileMesh(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, fails := range []bool{false, true} {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { hostileMCP(w, r, fails) }))
		t.Cleanup(web.Close)
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, ss grpc.ServerStream) error { return hostileRPC(ss, fails) }))
		go func() { _ = server.Serve(lis) }()
		t.Cleanup(server.Stop)
		name := map[bool]string{false: "sluice.yaml", true: "sluice-fails.yaml"}[fails]
		write(name, fmt.Sprintf("listen: %s\ngrpc: %s\ndata: data\npolicies: [policy.yaml]\nservers:\n  raw: {http: {url: %q}}\n",
			strings.TrimPrefix(web.URL, "http://"), lis.Addr(), web.URL+"/mcp"))
	}
	quoted, err := json.Marshal(hostile)
	if err != nil {
		t.Fatal(err)
	}
	write("policy.yaml", fmt.Sprintf("version: 1\nname: p\ndefault: deny\ntools: {%s: {action: %s, reason: %s}}\n", quoted, quoted, quoted))
	write("tools.json", fmt.Sprintf(`[{"name": %s, "description": %s, "inputSchema": {"properties": {%s: {"enum": ["delete"]}, "action": {"enum": ["delete", %s]}}}}]`, quoted, quoted, quoted, quoted))
	write("journal/calls-00000000000000000001.jsonl", `{"seq":1,"prev":"`+hostile+`"}`+"\n"+hostile+"\n")
	write("data/tokens/agent", strings.Repeat("a", 40))
	write("data/tokens/operator", strings.Repeat("o", 40))
	return dir
}

// hostileRPC answers a request to any gRPC method with one hostile message, or with an error if the parameter fails is
// true.
func hostileRPC(ss grpc.ServerStream, fails bool) error {
	name, _ := grpc.MethodFromServerStream(ss)
	if fails {
		return status.Error(codes.FailedPrecondition, hostile)
	}
	service, method, _ := strings.Cut(strings.TrimPrefix(name, "/"), "/")
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return err
	}
	desc := found.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(method))
	if err := ss.RecvMsg(dynamicpb.NewMessage(desc.Input())); err != nil {
		return err
	}
	answer := dynamicpb.NewMessage(desc.Output())
	fillHostile(answer, 6)
	return ss.SendMsg(proto.Message(answer))
}

// fillHostile sets every field of a message. All strings are hostile.
func fillHostile(m protoreflect.Message, depth int) {
	switch m.Descriptor().FullName() {
	case "google.protobuf.Timestamp", "google.protobuf.Duration":
		m.Set(m.Descriptor().Fields().ByName("seconds"), protoreflect.ValueOfInt64(time.Now().Unix()%3e9))
		return
	}
	for i := range m.Descriptor().Fields().Len() {
		field := m.Descriptor().Fields().Get(i)
		switch {
		case depth == 0 && field.Message() != nil:
		case field.IsMap():
		case field.IsList():
			list := m.Mutable(field).List()
			if field.Message() != nil {
				fillHostile(list.AppendMutable().Message(), depth-1)
			} else {
				list.Append(hostileValue(field))
			}
		case field.Message() != nil:
			fillHostile(m.Mutable(field).Message(), depth-1)
		default:
			m.Set(field, hostileValue(field))
		}
	}
}

func hostileValue(field protoreflect.FieldDescriptor) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.StringKind:
		if strings.HasSuffix(string(field.Name()), "_token") { // lists have only one page
			return protoreflect.ValueOfString("")
		}
		if name := string(field.Name()); strings.HasPrefix(name, "params") || name == "arguments_json" {
			raw, _ := json.Marshal(map[string]string{hostile: hostile})
			return protoreflect.ValueOfString(string(raw))
		}
		return protoreflect.ValueOfString(hostile)
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(hostile))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.Int64Kind:
		if field.Name() == "next_offset" { // a view has only one part
			return protoreflect.ValueOfInt64(0)
		}
		return protoreflect.ValueOfInt64(7)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(7)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(7)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(7)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(7)
	default:
		panic("no value for a " + field.Kind().String())
	}
}

// hostileMCP answers a request for any MCP method with a hostile result, or with an error if the parameter fails is
// true.
func hostileMCP(w http.ResponseWriter, r *http.Request, fails bool) {
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
	}
	_ = json.NewDecoder(r.Body).Decode(&m)
	if m.ID == nil {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	var text strings.Builder // JSON that does not escape the characters that JSON permits
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(hostile)
	bad := strings.NewReplacer("\\u2028", "\u2028", "\n", "").Replace(text.String())
	answer := `"result":` + map[string]string{
		"initialize": `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":` + bad + `,"version":` + bad + `},"instructions":` + bad + `}`,
		"tools/list": `{"tools":[{"name":` + bad + `,"title":` + bad + `,"description":` + bad + `,"inputSchema":{"type":"object","properties":{` + bad + `:{"type":"string","description":` + bad + `}}}}]}`,
		"tools/call": `{"content":[{"type":"text","text":` + bad + `}],"isError":true,"_meta":{"dev.sluice/decision":{"id":` + bad + `,"code":` + bad + `,"rule":` + bad + `}}}`,
	}[m.Method]
	if fails {
		answer = `"error":{"code":-32000,"message":` + bad + `,"data":` + bad + `}`
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Mcp-Session-Id", "s")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`, m.ID, answer)
}
