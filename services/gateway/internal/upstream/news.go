package upstream

import "sync"

// News tells that a server has said that its list of tools has changed (MCP, Tools, List
// Changed Notification). The zero value is ready. It is safe for concurrent use.
type News struct {
	once sync.Once
	told chan struct{}
}

// ToolsChanged has something once the server has said so since it was received from last.
func (n *News) ToolsChanged() <-chan struct{} {
	n.once.Do(func() { n.told = make(chan struct{}, 1) })
	return n.told
}

// Tell notes that the server has said so.
func (n *News) Tell() {
	n.ToolsChanged()
	select {
	case n.told <- struct{}{}:
	default: // nobody has looked since
	}
}
