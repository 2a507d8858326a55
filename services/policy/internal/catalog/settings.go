package catalog

import "fmt"

// Mode says how the definitions of a server's tools are pinned. The zero value accepts nothing automatically.
type Mode uint8

// The modes.
const (
	// Review accepts nothing automatically.
	Review Mode = iota
	// FirstUse accepts the first whole list.
	FirstUse
	// Off pins nothing: a tool may be called with any definition.
	Off
)

// Settings are the configuration of a server.
type Settings struct {
	Mode Mode
	// Trusted says that the server's annotations are believed.
	Trusted bool
}

// ParseMode returns the mode of a name in the configuration.
func ParseMode(name string) (Mode, error) {
	switch name {
	case "first_use":
		return FirstUse, nil
	case "review":
		return Review, nil
	case "off":
		return Off, nil
	}
	return Review, fmt.Errorf("no definitions are pinned by %q: write first_use, review or off", name)
}
