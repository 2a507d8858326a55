package catalog

import "fmt"

// Mode says which definitions of a server's tools are accepted automatically. The zero value is [Review].
type Mode uint8

// The modes.
const (
	// Review accepts no definition automatically.
	Review Mode = iota
	// FirstUse accepts the definitions of the first whole list.
	FirstUse
	// Off does not pin definitions: a tool may be called with any definition.
	Off
)

// Settings are the settings of a server in the configuration.
type Settings struct {
	Mode Mode
	// Trusted reports whether the annotations of the server's tools are used.
	Trusted bool
}

// ParseMode returns the mode that the configuration writes as name.
func ParseMode(name string) (Mode, error) {
	switch name {
	case "first_use":
		return FirstUse, nil
	case "review":
		return Review, nil
	case "off":
		return Off, nil
	}
	return Review, fmt.Errorf("unknown pin mode %q: write first_use, review or off", name)
}
