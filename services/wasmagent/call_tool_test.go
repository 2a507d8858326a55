package wasmagent_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// Case T6. A tool input that contains the name of another tool is refused, and no file is written.
func TestCallTool_RefusesToolNameInInput(t *testing.T) {
	t.Parallel()
	c := newTestService(t).onBehalfOfUser(t, "ana")
	id := c.create(new(wasmagentv1.CreateAgentRequest))
	_, err := c.CallTool(c.ctx, &wasmagentv1.CallToolRequest{
		AgentId: id, ToolName: wasmagentv1.SandboxTool_SANDBOX_TOOL_READ_FILE, ToolInput: `{"tool":"write_file","path":"x","content":"y"}`,
	})
	rpctest.WantStatus(t, err, codes.InvalidArgument, "TOOL_INPUT_INVALID")
	if files := c.files(id); len(files) != 0 {
		t.Errorf("the agent has the files %v", files)
	}
}

// Case T5. Only tool_name selects the built-in tool, and an input may contain only the fields of that tool.
func TestCallTool_OnlyToolNameSelectsTool(t *testing.T) {
	t.Parallel()
	c := newTestService(t).onBehalfOfUser(t, "ana")
	id := c.create(new(wasmagentv1.CreateAgentRequest))
	const (
		readFile  = wasmagentv1.SandboxTool_SANDBOX_TOOL_READ_FILE
		writeFile = wasmagentv1.SandboxTool_SANDBOX_TOOL_WRITE_FILE
		editFile  = wasmagentv1.SandboxTool_SANDBOX_TOOL_EDIT_FILE
		list      = wasmagentv1.SandboxTool_SANDBOX_TOOL_LIST_FILES
		todos     = wasmagentv1.SandboxTool_SANDBOX_TOOL_WRITE_TODOS
	)
	for _, step := range []struct {
		tool   wasmagentv1.SandboxTool
		input  string
		says   string
		reason string
	}{
		{writeFile, `{"path":"a/x.txt","content":"one\ntwo\none\n"}`, "wrote 12 bytes to a/x.txt", ""},
		{readFile, `{"path":"./a/x.txt","offset":1,"limit":1}`, "two\n", ""},
		{editFile, `{"path":"a/x.txt","old_string":"two","new_string":"2"}`, "edited a/x.txt", ""},
		{editFile, `{"path":"a/x.txt","old_string":"one","new_string":"1"}`, "", "EDIT_AMBIGUOUS"},
		{editFile, `{"path":"a/x.txt","old_string":"one","new_string":"1","replace_all":true}`, "edited a/x.txt", ""},
		{editFile, `{"path":"a/x.txt","old_string":"three","new_string":"3"}`, "", "EDIT_TARGET_UNKNOWN"},
		{list, ``, `["a/x.txt"]`, ""},
		{list, `{"path":"b"}`, `[]`, ""},
		{todos, `{"todos":[{"content":"one","status":"pending","active_form":"Doing one"}]}`, "wrote 1 todos", ""},
		{todos, `{"todos":[{"content":"one","status":"blocked"}]}`, "", "TOOL_INPUT_INVALID"},
		{todos, `{"todos":["one"]}`, "", "TOOL_INPUT_INVALID"},
		{todos, `{}`, "", "TOOL_INPUT_INVALID"},
		{readFile, `{"path":"nope"}`, "", "FILE_UNKNOWN"},
		{readFile, `{}`, "", "TOOL_INPUT_INVALID"},
		{readFile, `{"path":5}`, "", "TOOL_INPUT_INVALID"},
		{readFile, `[]`, "", "TOOL_INPUT_INVALID"},
		{readFile, `{"tool":"write_file","path":"smuggled.txt","content":"x"}`, "", "TOOL_INPUT_INVALID"},
		{readFile, `{"path":"a/x.txt","path":"b"}`, "", "TOOL_INPUT_INVALID"},
		{readFile, `{"Path":"a/x.txt"}`, "", "TOOL_INPUT_INVALID"},
		{writeFile, `{"path":"/etc/passwd","content":"x"}`, "", "PATH_INVALID"},
		{writeFile, `{"path":"../x","content":"x"}`, "", "PATH_INVALID"},
		{writeFile, `{"path":"","content":"x"}`, "", "PATH_INVALID"},
		{writeFile, `{"path":"a\u0000b","content":"x"}`, "", "PATH_INVALID"},
		{writeFile, `{"path":"z"}`, "", "TOOL_INPUT_INVALID"},
		{list, `{}`, `["a/x.txt"]`, ""},
	} {
		resp, err := c.CallTool(c.ctx, &wasmagentv1.CallToolRequest{AgentId: id, ToolName: step.tool, ToolInput: step.input})
		if step.reason == "" {
			if err != nil || resp.GetOutput() != step.says {
				t.Errorf("%s %s says %q, %v; want %q", step.tool, step.input, resp.GetOutput(), err, step.says)
			}
			continue
		}
		code := map[string]codes.Code{"EDIT_AMBIGUOUS": codes.FailedPrecondition, "EDIT_TARGET_UNKNOWN": codes.NotFound, "FILE_UNKNOWN": codes.NotFound}[step.reason]
		if code == codes.OK {
			code = codes.InvalidArgument
		}
		rpctest.WantStatus(t, err, code, step.reason)
	}
}
