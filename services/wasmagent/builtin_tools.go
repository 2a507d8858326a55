package wasmagent

import (
	"context"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/abi"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/agent"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/files"
)

// CallTool implements wasmagentv1.AgentServiceServer. The request's field tool_name selects the tool. CallTool refuses
// an input that contains an unknown field.
func (s *Service) CallTool(ctx context.Context, req *wasmagentv1.CallToolRequest) (*wasmagentv1.CallToolResponse, error) {
	find := s.findAgentToUse
	if tool := req.GetToolName(); tool == wasmagentv1.SandboxTool_SANDBOX_TOOL_READ_FILE || tool == wasmagentv1.SandboxTool_SANDBOX_TOOL_LIST_FILES {
		find = s.findAgent
	}
	a, err := find(ctx, req.GetAgentId())
	if err != nil {
		return nil, err
	}
	if err := s.ensureSpace(ctx, principal.Person(a.Creator)); err != nil {
		return nil, toStatus(err)
	}
	input := []byte(req.GetToolInput())
	if len(input) == 0 {
		input = []byte("{}")
	}
	output, err := callBuiltinTool(callerOf(ctx), a, req.GetToolName(), input)
	if err != nil {
		return nil, toStatus(err)
	}
	return &wasmagentv1.CallToolResponse{Output: output}, nil
}

func callBuiltinTool(caller agent.Caller, a *agent.Agent, tool wasmagentv1.SandboxTool, input []byte) (output string, err error) {
	switch tool { //nolint:exhaustive // the proto file allows no other value
	case wasmagentv1.SandboxTool_SANDBOX_TOOL_READ_FILE:
		var in struct {
			Path   *string `json:"path"`
			Offset int     `json:"offset"`
			Limit  int     `json:"limit"`
		}
		if err := parseToolInput(input, &in, &in.Path); err != nil {
			return "", err
		}
		err = a.ReadFiles(func(f *files.Files) (err error) {
			output, err = f.Read(*in.Path, in.Offset, in.Limit)
			return err
		})
	case wasmagentv1.SandboxTool_SANDBOX_TOOL_WRITE_FILE:
		var in struct {
			Path    *string `json:"path"`
			Content *string `json:"content"`
		}
		if err := parseToolInput(input, &in, &in.Path, &in.Content); err != nil {
			return "", err
		}
		err = a.UpdateFiles(caller, func(f *files.Files) (string, error) {
			name, err := f.Write(*in.Path, *in.Content, time.Now())
			output = fmt.Sprintf("wrote %d bytes to %s", len(*in.Content), name)
			return "write_file: " + output, err
		})
	case wasmagentv1.SandboxTool_SANDBOX_TOOL_EDIT_FILE:
		var in struct {
			Path       *string `json:"path"`
			OldString  *string `json:"old_string"`
			NewString  *string `json:"new_string"`
			ReplaceAll bool    `json:"replace_all"`
		}
		if err := parseToolInput(input, &in, &in.Path, &in.OldString, &in.NewString); err != nil {
			return "", err
		}
		err = a.UpdateFiles(caller, func(f *files.Files) (string, error) {
			name, _, err := f.Edit(*in.Path, *in.OldString, *in.NewString, in.ReplaceAll, time.Now())
			output = "edited " + name
			return "edit_file: " + output, err
		})
	case wasmagentv1.SandboxTool_SANDBOX_TOOL_LIST_FILES:
		var in struct {
			Path string `json:"path"`
		}
		if err := parseToolInput(input, &in); err != nil {
			return "", err
		}
		return listFiles(a, in.Path)
	case wasmagentv1.SandboxTool_SANDBOX_TOOL_WRITE_TODOS:
		return writeTodos(caller, a, input)
	default:
		return "", errToolInput
	}
	return output, err
}

// parseToolInput parses a tool's input into the value that the parameter into points to. It returns an error if a
// required field is missing.
func parseToolInput(input []byte, into any, required ...**string) error {
	if err := json.Unmarshal(input, into, json.RejectUnknownMembers(true)); err != nil {
		return fmt.Errorf("%w: %s", errToolInput, abi.JSONError(err))
	}
	for _, field := range required {
		if *field == nil {
			return fmt.Errorf("%w: a field is missing", errToolInput)
		}
	}
	return nil
}

func listFiles(a *agent.Agent, below string) (string, error) {
	var paths []string
	err := a.ReadFiles(func(f *files.Files) (err error) {
		paths, err = f.Paths(below)
		return err
	})
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(paths)
	return string(text), err
}

func writeTodos(caller agent.Caller, a *agent.Agent, input []byte) (string, error) {
	var in struct {
		Todos *[]struct {
			Content string `json:"content"`
			Status  string `json:"status"`
			// some clients send this field; it is not stored
			ActiveForm string `json:"active_form"`
		} `json:"todos"`
	}
	if err := parseToolInput(input, &in); err != nil {
		return "", err
	}
	if in.Todos == nil {
		return "", fmt.Errorf("%w: todos is missing", errToolInput)
	}
	todos := make([]*wasmagentv1.Todo, 0, len(*in.Todos))
	for _, t := range *in.Todos {
		todos = append(todos, &wasmagentv1.Todo{Content: t.Content, Status: agent.TodoStatus(t.Status)})
	}
	if err := a.SetTodos(caller, todos); err != nil {
		return "", err
	}
	return fmt.Sprintf("wrote %d todos", len(todos)), nil
}
