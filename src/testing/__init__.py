"""Does a namespace do what the specification says? A suite of behaviours for any ``lance_namespace.LanceNamespace``.

Each behaviour has an id, the sentence of the specification that it stands for, and an outcome: passed, failed, or not
offered. For a namespace that ``lance_namespace.connect`` opens there is nothing to write::

    pytest --pyargs lancekeep.testing --lance-namespace lancekeep.DirectoryNamespace \\
        --lance-namespace-property manifest_enabled=false \\
        --lance-namespace-without namespaces,properties,locations,rename

Every behaviour gets an empty place of its own. ``{place}`` in the value of a property becomes the path of a directory
that does not exist yet; ``root={place}`` is a property unless another root is given. For anything else subclass::

    from lancekeep.testing.kit import Capability
    from lancekeep.testing.suite import NamespaceBehaviours

    class TestOurs(NamespaceBehaviours):
        capabilities = {Capability.NAMESPACES, Capability.PROPERTIES}

        @pytest.fixture
        def namespace_factory(self, tmp_path):
            return lambda: OurNamespace(tmp_path)  # called again: a second door to the same place

What a namespace does not declare among `lancekeep.testing.kit.Capability` is not asked of it; what it declares it has
to do. ``lancekeep.testing.kit.run_all`` does the same without pytest, which nothing but the suite needs.
"""
