package gallery

import (
	"crypto/sha3"
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/reflect/protoreflect"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/strictprotojson"
)

// maxContainer limits the size of a container, in bytes.
const maxContainer = 2 << 20

// ErrLarge means that the container would be too large.
var ErrLarge = fmt.Errorf("the container is larger than %d MiB", maxContainer>>20)

// Parts contains the parts of a template that a container stores.
type Parts struct {
	Tools        []*wasmagentv1.TemplateTool
	Prompts      []*wasmagentv1.TemplatePrompt
	Skills       []*wasmagentv1.TemplateSkill
	MCPTools     []*wasmagentv1.TemplateMcpTool
	Capabilities []*wasmagentv1.TemplateCapability
}

// PartsOf returns the parts of a template that a container stores.
func PartsOf(t *wasmagentv1.Template) Parts {
	return Parts{Tools: t.GetTools(), Prompts: t.GetPrompts(), Skills: t.GetSkills(), MCPTools: t.GetMcpTools(), Capabilities: t.GetCapabilities()}
}

// Container encodes parts of a template in the format that the proto file defines for LoadRvf. The format consists of
// the magic number, the number of sections, the sections that are not empty, and the SHA3-256 of all preceding bytes.
// Container returns [ErrLarge] if the result would be too large.
func Container(p Parts) ([]byte, error) {
	sections := 0
	var body []byte
	for _, add := range []func() ([]byte, error){
		func() ([]byte, error) { return section(0x04, 0x05, p.Tools) },
		func() ([]byte, error) { return section(0x04, 0x06, p.Prompts) },
		func() ([]byte, error) { return section(0x04, 0x09, p.Skills) },
		func() ([]byte, error) { return section(0x04, 0x0b, p.MCPTools) },
		func() ([]byte, error) { return section(0x06, 0x0c, p.Capabilities) },
	} {
		packed, err := add()
		if err != nil {
			return nil, err
		}
		if len(packed) > 0 {
			sections++
			body = append(body, packed...)
		}
	}
	if len(body) > maxContainer {
		return nil, ErrLarge
	}
	out := binary.LittleEndian.AppendUint32([]byte("RVF\x01"), uint32(sections))
	out = append(out, body...)
	sum := sha3.Sum256(out)
	return append(out, sum[:]...), nil
}

// section encodes the parts of one kind. It returns nil if there are none.
func section[T interface{ ProtoReflect() protoreflect.Message }](high, low byte, parts []T) ([]byte, error) {
	if len(parts) == 0 {
		return nil, nil
	}
	text := []byte{'['}
	for i, part := range parts {
		if i > 0 {
			text = append(text, ',')
		}
		var err error
		if text, err = strictprotojson.Append(text, part.ProtoReflect(), maxContainer); err != nil {
			if errors.Is(err, strictprotojson.ErrTooLarge) {
				err = ErrLarge
			}
			return nil, err
		}
	}
	text = append(text, ']')
	out := binary.LittleEndian.AppendUint32([]byte{high, low, 1}, uint32(len(text)))
	return append(out, text...), nil
}
