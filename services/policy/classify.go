package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy/internal/classify"
)

// These constants limit the size of a list of tools. They also apply to ReportTools.
const (
	// MaxTools is the maximum number of tools in a list.
	MaxTools = 10_000
	// MaxList is the maximum length of a list in bytes.
	MaxList = 64 << 20
)

// ErrList means that the input is not a list of tools.
var ErrList = errors.New("this is not a list of tools: give the response to `tools/list`, its result, or the array in its result")

// ClassifiedTool is a tool in a list and its classification.
type ClassifiedTool struct {
	Name string
	*policyv1.Classification
}

// ClassifyList classifies the tools in a list by their definitions, in the order of the list. The list can be the
// response to `tools/list` (MCP, Tools, Listing Tools), the result in this response, or the array of tools in this
// result. Annotations can make the classification of a tool less strict only if the server is trusted. An error about a
// tool contains the position of the tool in the list.
func ClassifyList(list []byte, trusted bool) ([]ClassifiedTool, error) {
	definitions, path, err := definitionsIn(list)
	if err != nil {
		return nil, err
	}
	out := make([]ClassifiedTool, 0, len(definitions))
	indexes := make(map[string]int)
	for i, definition := range definitions {
		tool, err := classify.Read(definition)
		if err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", path, i, err)
		}
		if first, duplicate := indexes[tool.Name]; duplicate {
			return nil, fmt.Errorf("%s[%d]: the name %q is already at %s[%d]: it is unknown which of the two a call would reach", path, i, tool.Name, path, first)
		}
		indexes[tool.Name] = i
		out = append(out, ClassifiedTool{tool.Name, classify.Classify(tool, trusted)})
	}
	return out, nil
}

// definitionsIn returns the definitions in a list, and the path of the array of definitions for error messages.
func definitionsIn(list []byte) (definitions []jsontext.Value, path string, _ error) {
	if len(list) > MaxList {
		return nil, "", fmt.Errorf("the list is longer than %d MiB", MaxList>>20)
	}
	dec := jsontext.NewDecoder(bytes.NewReader(list))
	value, err := dec.ReadValue()
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrList, err)
	}
	value = value.Clone()
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, "", fmt.Errorf("%w: more text follows the JSON value", ErrList)
	}
	path = "tools"
	if value.Kind() == '{' {
		var response struct {
			Tools  *jsontext.Value `json:"tools"`
			Result struct {
				Tools *jsontext.Value `json:"tools"`
			} `json:"result"`
		}
		if err := json.Unmarshal(value, &response); err != nil {
			return nil, "", fmt.Errorf("%w: %w", ErrList, err)
		}
		switch {
		case response.Tools != nil:
			value = *response.Tools
		case response.Result.Tools != nil:
			value, path = *response.Result.Tools, "result.tools"
		}
	}
	if value.Kind() != '[' {
		return nil, "", ErrList
	}
	if err := json.Unmarshal(value, &definitions); err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrList, err)
	}
	if len(definitions) > MaxTools {
		return nil, "", fmt.Errorf("the list has %d tools; at most %d are allowed", len(definitions), MaxTools)
	}
	return definitions, path, nil
}
