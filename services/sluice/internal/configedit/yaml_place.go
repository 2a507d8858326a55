package configedit

import "go.yaml.in/yaml/v4"

// A yamlPlace is an existing container or entry.
type yamlPlace struct {
	// key is nil for the root and for an item of a list.
	key, value *yaml.Node
	// parent is the container of the value, or nil for the root.
	parent *yaml.Node
}

// locate returns the deepest existing value on the path, and the rest of the path. It returns an error if a value on
// the path can't be edited.
func (d *yamlDocument) locate(path []string) (at yamlPlace, rest []string, err error) {
	at, rest = yamlPlace{value: d.root}, path
	for at.value != nil && len(rest) > 0 {
		if err := d.checkContainer(at, len(rest) == 1 && d.nameKey != ""); err != nil {
			return at, rest, err
		}
		next, ok := d.step(at.value, rest)
		if !ok {
			return at, rest, nil
		}
		at, rest = next, rest[1:]
	}
	if at.value != nil && len(rest) == 0 {
		err = d.checkPlain(at.value)
	}
	return at, rest, err
}

// step returns the entry of a container whose name is the first element of path.
func (d *yamlDocument) step(container *yaml.Node, path []string) (yamlPlace, bool) {
	for i, n := range container.Content {
		switch {
		case container.Kind == yaml.SequenceNode:
			if yamlName(n, d.nameKey) == path[0] && len(path) == 1 {
				return yamlPlace{value: n, parent: container}, true
			}
		case i%2 == 0 && n.Kind == yaml.ScalarNode && n.Tag == "!!str" && n.Value == path[0]:
			return yamlPlace{key: n, value: container.Content[i+1], parent: container}, true
		}
	}
	return yamlPlace{}, false
}

// yamlName returns the name of a list item, or "" if the item has no name.
func yamlName(item *yaml.Node, nameKey string) string {
	for i := 0; item.Kind == yaml.MappingNode && i+1 < len(item.Content); i += 2 {
		if item.Content[i].Value == nameKey && item.Content[i+1].Tag == "!!str" {
			return item.Content[i+1].Value
		}
	}
	return ""
}

// checkContainer returns an error if the entries of a container can't be edited.
func (d *yamlDocument) checkContainer(at yamlPlace, list bool) error {
	n := at.value
	if err := d.checkPlain(n); err != nil {
		return err
	}
	wanted, kind := yaml.MappingNode, "mapping"
	if list {
		wanted, kind = yaml.SequenceNode, "list"
	}
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null" && at.key != nil:
		return nil
	case n.Style&yaml.FlowStyle != 0 && at.key != nil && len(n.Content) == 0:
		return nil
	case n.Kind != wanted:
		return d.refuseNode(n, "the value is not a "+kind, "replace it with a "+kind)
	case n.Style&yaml.FlowStyle != 0:
		return d.refuseNode(n, "the value is written in braces or brackets", "write it in block style, one key in each line")
	}
	names := make(map[string]bool)
	for i, c := range n.Content {
		switch {
		case list && yamlName(c, d.nameKey) != "" && names[yamlName(c, d.nameKey)]:
			return d.refuseNode(c, "the list has two items of this name", "rename one of the two")
		case !list && i%2 == 0 && c.Tag == "!!merge":
			return d.refuseNode(c, "the mapping has a merge key", "write the merged keys out")
		}
		names[yamlName(c, d.nameKey)] = true
	}
	return nil
}

// checkPlain returns an error if a value has an anchor or a tag, or is an alias.
func (d *yamlDocument) checkPlain(n *yaml.Node) error {
	switch {
	case n.Kind == yaml.AliasNode:
		return d.refuseNode(n, "the value is an alias", "write the value out")
	case n.Anchor != "":
		return d.refuseNode(n, "the value has an anchor", "remove the anchor, and write the value out where it is used")
	case n.Style&yaml.TaggedStyle != 0:
		return d.refuseNode(n, "the value has a tag", "remove the tag")
	}
	return nil
}

// checkEntry returns an error if the bytes of an entry can't be replaced.
func (d *yamlDocument) checkEntry(n *yaml.Node) error {
	switch {
	case n.Kind == yaml.AliasNode, n.Anchor != "":
		return d.checkPlain(n)
	case n.Kind == yaml.MappingNode:
		for i := 0; i < len(n.Content); i += 2 {
			if n.Content[i].Tag == "!!merge" {
				return d.refuseNode(n.Content[i], "the mapping has a merge key", "write the merged keys out")
			}
		}
	}
	for _, child := range n.Content {
		if err := d.checkEntry(child); err != nil {
			return err
		}
	}
	return nil
}
